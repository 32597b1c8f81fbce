// Groups out of groups, and the end of a group.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/backend/invitation.h"
#include "csrc/base/signals.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

namespace {

/// The time that a rank that handles an exception waits for the group's calls to end.
constexpr std::chrono::seconds kGrace{2};

}  // namespace

c10::intrusive_ptr<c10d::Backend> TuttiBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const Caller caller{rank_, "split"};
  TUTTI_TORCH_EXPECT(!ranks.empty(), caller, "the list of ranks is empty; expected at least one");
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  // Groups of one split share no rank, so the lowest rank of a group tells it from the others.
  const int color = own == ranks.end() ? -1 : *std::min_element(ranks.begin(), ranks.end());
  const int key = static_cast<int>(own - ranks.begin());
  const std::string name = options ? group_name(*options) : std::string();
  const auto part = [&](Channel& channel) {
    return translated([&] { return channel.use([&](tutti::Communicator& c) { return c.split(color, key, name); }); });
  };
  tutti::Communicator collectives = part(*collectives_);
  tutti::Communicator transfers = part(transfers_.channel());
  if (color < 0) return {};
  if (options) {
    for (tutti::Communicator* child : {&collectives, &transfers}) {
      translated([&] { child->set_timeout(options->timeout); });
    }
  }
  auto child_options = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
  if (options) {
    child_options->group_name = options->group_name;
    child_options->global_ranks_in_group = options->global_ranks_in_group;
  }
  const int size = collectives.size();
  auto child = c10::make_intrusive<TuttiBackend>(store, key, size, std::move(collectives), std::move(transfers),
                                                 std::move(child_options));
  if (bound_) child->eagerConnectSingleDevice(*bound_);
  return child;
}

void TuttiBackend::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda() || !tutti::supports(tutti::Memory::device)) return;
  bound_ = device;
  translated([&] {
    transfers_.channel().use([&](tutti::Communicator& c) {
      try {
        c.open_device(device.index());
      } catch (const tutti::Error& error) {
        // On all ranks alike: their messages go through the host.
        if (error.code() != tutti::Code::unsupported && error.code() != tutti::Code::memory_limit) throw;
      }
    });
  });
}

void TuttiBackend::setTimeout(std::chrono::milliseconds timeout) {
  for (Channel* channel : {collectives_.get(), &transfers_.channel()}) {
    translated([&] { channel->use([&](tutti::Communicator& c) { c.set_timeout(timeout); }); });
  }
  options_->timeout = timeout;
}

c10d::ErrorType TuttiBackend::getError() {
  for (const Channel* channel : {collectives_.get(), &transfers_.channel()}) {
    const tutti::Code code = channel->failure();
    if (code == tutti::Code::ok) continue;
    if (code == tutti::Code::timeout) return c10d::ErrorType::TIMEOUT;
    return code == tutti::Code::peer_died ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
  }
  return c10d::ErrorType::SUCCESS;
}

void TuttiBackend::abort() { abort_because("torch.distributed was asked to abort the group"); }

void TuttiBackend::abort_because(const std::string& reason) {
  collectives_->abort(reason);
  transfers_.channel().abort(reason);
}

void TuttiBackend::shutdown() {
  const auto aborted = [](const Channel& channel) { return channel.failure() == tutti::Code::aborted; };
  // A rank that was interrupted in a collective does not wait for the sends of its group, and the other way round.
  if (aborted(*collectives_) || aborted(transfers_.channel())) abort_because("its group was aborted or interrupted");
  // A rank that an exception ends may never again do what its peers need to end what is under way.
  const Clock::time_point deadline = handling_exception() ? Clock::now() + kGrace : Clock::time_point::max();
  for (Channel* channel : {collectives_.get(), &transfers_.channel()}) {
    if (!channel->wait_idle(deadline)) {
      abort_because("rank " + std::to_string(rank_) + " left its group because of an exception, with calls under way");
      (void)channel->wait_idle(Clock::time_point::max());
    }
    channel->close();
  }
}

void TuttiBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Caller caller{rank_, "monitored_barrier"};
  const std::chrono::milliseconds timeout =
      options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  TUTTI_TORCH_EXPECT(timeout.count() > 0, caller, "timeout is ", timeout.count(), " ms; expected more than 0");
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string prefix = "tutti/monitored/" + std::to_string(++monitored_barriers_) + "/";
  // Until the key is there or `until` has passed.
  const auto comes = [&](const std::string& key, Clock::time_point until) {
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, kSignalSlice)) {
      if (store_->check({key})) return true;
      if (Clock::now() >= until) return false;
      check_signals();
      std::this_thread::sleep_for(pause);
    }
  };
  if (rank_ != 0) {
    store_->set(prefix + "came/" + std::to_string(rank_), std::string("here"));
    // Rank 0 may have come late, and gives every rank its time from then on.
    const bool answered = comes(prefix + "verdict", deadline + timeout);
    TORCH_CHECK_WITH(DistBackendError, answered, caller.text(), " and timed out: rank 0, which may come ",
                     timeout.count(), " ms after this rank, has not answered within ", 2 * timeout.count(), " ms");
    const std::string verdict = store_->get_to_str(prefix + "verdict");
    store_->set(prefix + "read/" + std::to_string(rank_), std::string("verdict"));
    TORCH_CHECK_WITH(DistBackendError, verdict == "ok", verdict);
    return;
  }
  std::string missing;
  std::vector<int> came;
  for (int rank = 1; rank < size_; ++rank) {
    if (comes(prefix + "came/" + std::to_string(rank), deadline)) {
      came.push_back(rank);
      continue;
    }
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) break;
  }
  const std::string verdict = missing.empty() ? "ok"
                                              : "monitored_barrier timed out: rank(s) " + missing +
                                                    " did not come within " + std::to_string(timeout.count()) + " ms";
  store_->set(prefix + "verdict", verdict);
  // This rank may end then, and the store with it: those that came read the verdict before.
  const Clock::time_point limit = Clock::now() + kGrace;
  for (const int rank : came) (void)comes(prefix + "read/" + std::to_string(rank), limit);
  TORCH_CHECK_WITH(DistBackendError, missing.empty(), verdict);
}

}  // namespace tutti_torch
