// Gloo behind CommunicatorInterface: its TCP transport over the loopback interface, or TUTTI_INTERFACE. Ranks meet over
// files in a folder of the temporary directory (hosts must share it), which is gone as soon as all are connected.
#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "collectives/baseline/plugins/gloo_reduce.h"
#include "collectives/baseline/plugins/ordered_communicator.h"
#include "collectives/baseline/plugins/plugin.h"

namespace tutti {
namespace {

/// Gloo moves bytes; the number of elements matters only where it splits a message for reduction.
using Byte = char;

class GlooCommunicator final : public OrderedCommunicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<gloo::rendezvous::Context> context)
      : OrderedCommunicator("gloo"), context_(std::move(context)) {}
  ~GlooCommunicator() override {
    stop();
    context_->closeConnections();
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

 private:
  Status execute(const Call& call) override;
  Status execute_group(std::span<const Transfer> transfers) override;

  void dispatch(const Call& call, gloo::AllreduceOptions::Algorithm algorithm);
  void all_reduce(const void* send, void* recv, std::size_t count, const Call& call,
                  gloo::AllreduceOptions::Algorithm algorithm);
  void reduce(const Call& call);
  void reduce_scatter(const Call& call, gloo::AllreduceOptions::Algorithm algorithm);
  void scatter(const Call& call);
  void all_to_allv(const Call& call);

  std::uint32_t next_tag() { return tag_++ & 0x7fffffff; }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  std::uint32_t tag_ = 0;
  std::vector<char> whole_;  // what the ranks that are not the root, and reduce_scatter, need for a whole vector
};

template <class T>
void set_type(std::size_t bytes, T&& body) {
  switch (bytes) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

Byte* writable(const void* pointer) { return const_cast<Byte*>(static_cast<const Byte*>(pointer)); }

void GlooCommunicator::all_reduce(const void* send, void* recv, std::size_t count, const Call& call,
                                  gloo::AllreduceOptions::Algorithm algorithm) {
  gloo::AllreduceOptions options(context_);
  set_type(size_of(call.type), [&](auto zero) {
    using T = decltype(zero);
    if (send != recv) options.setInput(reinterpret_cast<T*>(writable(send)), count);
    options.setOutput(static_cast<T*>(recv), count);
  });
  options.setAlgorithm(algorithm);
  options.setReduceFunction(gloo_reduce(call.type, call.op));
  options.setTag(next_tag());
  gloo::allreduce(options);
  if (call.op == ReduceOp::avg) divide(recv, count, call.type, size());
}

void GlooCommunicator::reduce(const Call& call) {
  // Gloo works in the output buffer of every rank; ours is touched at the root only.
  void* recv = call.recv;
  if (rank() != call.root) {
    whole_.resize(call.count * size_of(call.type));
    recv = whole_.data();
  }
  gloo::ReduceOptions options(context_);
  set_type(size_of(call.type), [&](auto zero) {
    using T = decltype(zero);
    if (call.send != recv) options.setInput(reinterpret_cast<T*>(writable(call.send)), call.count);
    options.setOutput(static_cast<T*>(recv), call.count);
  });
  options.setRoot(call.root);
  options.setReduceFunction(gloo_reduce(call.type, call.op));
  options.setTag(next_tag());
  gloo::reduce(options);
  if (call.op == ReduceOp::avg && rank() == call.root) divide(recv, call.count, call.type, size());
}

/// Gloo's only reduce-scatter is bound to buffers and types when it is made; frameworks therefore reduce everything
/// everywhere and keep their share, and so does this.
void GlooCommunicator::reduce_scatter(const Call& call, gloo::AllreduceOptions::Algorithm algorithm) {
  const std::size_t bytes = call.count * size_of(call.type);
  whole_.resize(bytes * static_cast<std::size_t>(size()));
  all_reduce(call.send, whole_.data(), call.count * static_cast<std::size_t>(size()), call, algorithm);
  std::memcpy(call.recv, whole_.data() + bytes * static_cast<std::size_t>(rank()), bytes);
}

void GlooCommunicator::scatter(const Call& call) {
  const std::size_t bytes = call.count * size_of(call.type);
  gloo::ScatterOptions options(context_);
  if (rank() == call.root) {
    std::vector<Byte*> shares;
    for (int i = 0; i < size(); ++i) shares.push_back(writable(call.send) + static_cast<std::size_t>(i) * bytes);
    options.setInputs(shares, bytes);
  }
  // In place, the root's own share would be copied onto itself: memcpy of equal pointers, which it allows.
  options.setOutput(static_cast<Byte*>(call.recv), bytes);
  options.setRoot(call.root);
  options.setTag(next_tag());
  gloo::scatter(options);
}

void GlooCommunicator::all_to_allv(const Call& call) {
  const auto pass = [this](const std::size_t* counts, const std::size_t* offsets) {
    std::size_t at = 0;
    std::vector<std::int64_t> list;
    for (int i = 0; i < size(); ++i) {
      if (offsets[i] != at) throw gloo::InvalidOperationException("its shares must lie one after the other");
      at += counts[i];
      list.push_back(static_cast<std::int64_t>(counts[i]));
    }
    return list;
  };
  gloo::AlltoallvOptions options(context_);
  set_type(size_of(call.type), [&](auto zero) {
    using T = decltype(zero);
    options.setInput(reinterpret_cast<T*>(writable(call.send)), pass(call.send_counts, call.send_offsets));
    options.setOutput(static_cast<T*>(call.recv), pass(call.recv_counts, call.recv_offsets));
  });
  options.setTag(next_tag());
  gloo::alltoallv(options);
}

void GlooCommunicator::dispatch(const Call& call, gloo::AllreduceOptions::Algorithm algorithm) {
  const std::size_t bytes = call.count * size_of(call.type);
  const std::size_t ranks = static_cast<std::size_t>(size());
  Byte* send = writable(call.send);
  Byte* recv = static_cast<Byte*>(call.recv);
  switch (call.collective) {
    case Collective::all_reduce: return all_reduce(call.send, call.recv, call.count, call, algorithm);
    case Collective::reduce: return reduce(call);
    case Collective::reduce_scatter: return reduce_scatter(call, algorithm);
    case Collective::scatter: return scatter(call);
    case Collective::all_to_allv: return all_to_allv(call);
    case Collective::all_gather: {
      gloo::AllgatherOptions options(context_);
      if (!is_in_place(call, rank())) options.setInput(send, bytes);
      options.setOutput(recv, bytes * ranks);
      options.setTag(next_tag());
      return gloo::allgather(options);
    }
    case Collective::broadcast: {
      gloo::BroadcastOptions options(context_);
      if (rank() == call.root && send != recv) options.setInput(send, bytes);
      options.setOutput(recv, bytes);
      options.setRoot(call.root);
      options.setTag(next_tag());
      return gloo::broadcast(options);
    }
    case Collective::all_to_all: {
      gloo::AlltoallOptions options(context_);
      options.setInput(send, bytes * ranks);
      options.setOutput(recv, bytes * ranks);
      options.setTag(next_tag());
      return gloo::alltoall(options);
    }
    case Collective::gather: {
      gloo::GatherOptions options(context_);
      options.setInput(send, bytes);
      if (rank() == call.root) options.setOutput(recv, bytes * ranks);
      options.setRoot(call.root);
      options.setTag(next_tag());
      return gloo::gather(options);
    }
    case Collective::barrier: {
      gloo::BarrierOptions options(context_);
      options.setTag(next_tag());
      return gloo::barrier(options);
    }
    case Collective::send_recv: break;
  }
}

Status GlooCommunicator::execute(const Call& call) {
  const std::string what = fmt::format("{} of {}", name_of(call.collective), name_of(call.type));
  if (call.collective == Collective::send_recv) return lacks("send_recv outside a group");
  if (reduces(call.collective) && gloo_reduce(call.type, call.op) == nullptr)
    return lacks(is_bitwise(call.op) ? fmt::format("{} with {}", what, name_of(call.op)) : what);
  if (reduces(call.collective) && call.op == ReduceOp::avg && call.type == DataType::f16)
    return lacks(what + " with avg");
  if (call.collective == Collective::all_to_all && call.send == call.recv) return lacks("all_to_all in place");
  auto algorithm = gloo::AllreduceOptions::Algorithm::UNSPECIFIED;
  if (call.algorithm == "ring") {
    algorithm = gloo::AllreduceOptions::Algorithm::RING;
  } else if (call.algorithm == "bcube") {
    algorithm = gloo::AllreduceOptions::Algorithm::BCUBE;
  } else if (!call.algorithm.empty()) {
    return lacks(fmt::format("algorithm '{}' (it has ring and bcube)", call.algorithm));
  }
  const bool counts = call.collective != Collective::barrier && call.collective != Collective::all_to_allv;
  if (counts && call.count == 0) return {};  // Gloo refuses messages of nothing
  try {
    dispatch(call, algorithm);
  } catch (const std::exception& error) {
    return {Code::system, fmt::format("rank {}: backend gloo: {}: {}", rank(), what, error.what())};
  }
  return {};
}

Status GlooCommunicator::execute_group(std::span<const Transfer> transfers) {
  // Above the tags of collectives, which carry a prefix in the top byte; the message's own is below.
  constexpr std::uint64_t kSlot = 0x7f00000000000000;
  try {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
    for (const Transfer& transfer : transfers) {
      buffers.push_back(context_->createUnboundBuffer(transfer.buffer, transfer.count * size_of(transfer.type)));
      const std::uint64_t slot = kSlot | static_cast<std::uint64_t>(transfer.tag);
      if (transfer.sending) {
        buffers.back()->send(transfer.peer, slot);
      } else if (transfer.peer == kAnySource) {
        std::vector<int> others;
        for (int r = 0; r < size(); ++r) {
          if (r != rank()) others.push_back(r);
        }
        buffers.back()->recv(others, slot);
      } else {
        buffers.back()->recv(transfer.peer, slot);
      }
    }
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].sending) {
        buffers[i]->waitSend(context_->getTimeout());
      } else {
        int source = transfers[i].peer;
        buffers[i]->waitRecv(&source, context_->getTimeout());
        if (transfers[i].source != nullptr) *transfers[i].source = source;
      }
    }
  } catch (const std::exception& error) {
    return {Code::system, fmt::format("rank {}: backend gloo: send_recv: {}", rank(), error.what())};
  }
  return {};
}

std::filesystem::path store_folder(const std::string& job) {
  return std::filesystem::temp_directory_path() /
         fmt::format("tutti_gloo_{}_{:016x}", geteuid(), std::hash<std::string>{}(job));
}

/// Rank 0's duty, also when connecting fails: to leave no files.
class Cleanup {
 public:
  explicit Cleanup(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~Cleanup() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;

 private:
  const std::filesystem::path folder_;
};

std::shared_ptr<GlooCommunicator> connect(const BaselineSettings& settings) {
  gloo::transport::tcp::attr where;
  where.iface = settings.interface.empty() ? "lo" : settings.interface;
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(where);
  auto context = std::make_shared<gloo::rendezvous::Context>(settings.rank, settings.size);
  context->setTimeout(settings.timeout);
  if (settings.size > 1) {
    const std::filesystem::path folder = store_folder(settings.job);
    mkdir(folder.c_str(), 0700);  // the first rank makes it
    const Cleanup cleanup(settings.rank == 0 ? folder : std::filesystem::path());
    gloo::rendezvous::FileStore store(folder.string());
    context->connectFullMesh(store, device);
    gloo::BarrierOptions options(context);  // after it no rank reads the files
    gloo::barrier(options);
  }
  return std::make_shared<GlooCommunicator>(std::move(context));
}

}  // namespace
}  // namespace tutti

void tutti_baseline_open(const tutti::BaselineSettings& settings,
                         std::shared_ptr<tutti::CommunicatorInterface>& communicator, tutti::Status& status) {
  try {
    communicator = tutti::connect(settings);
  } catch (const std::exception& error) {
    status = tutti::Status(tutti::Code::system,
                           fmt::format("rank {}: backend gloo: connecting: {}", settings.rank, error.what()));
  }
}
