#include "collectives/device/multi_host/hierarchical_call.h"

#include <algorithm>

#include "base/even_share.h"
#include "collectives/calls/validate.h"
#include "transport/transport.h"

namespace tutti {

bool HierarchicalCall::serves(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast || collective == Collective::reduce_scatter ||
         collective == Collective::all_gather;
}

HierarchicalCall::HierarchicalCall(const Call& call, const HostLayout& layout, std::byte* share, std::size_t slot_bytes)
    : call_(call),
      layout_(layout),
      rank_(layout.rank(layout.host(), layout.local_rank())),
      hosts_(static_cast<std::size_t>(layout.hosts())),
      local_size_(static_cast<std::size_t>(layout.local_size())),
      element_(size_of(call.type)),
      share_(share) {
  const std::size_t bytes = of_blocks() ? slot_bytes / hosts_ : slot_bytes;
  part_ = std::max(bytes / transport::kCacheLine * transport::kCacheLine / element_, std::size_t{1});
}

std::byte* HierarchicalCall::send_at(std::size_t index) const {
  return static_cast<std::byte*>(const_cast<void*>(call_.send)) + index * element_;
}

std::byte* HierarchicalCall::recv_at(std::size_t index) const {
  return static_cast<std::byte*>(call_.recv) + index * element_;
}

std::size_t HierarchicalCall::fragments() const {
  const std::size_t of_each = of_blocks() ? part_ : part_ * local_size_;
  return (shared() < call_.count ? 1 : 0) + largest_share(shared(), of_each);
}

HierarchicalCall::Fragment HierarchicalCall::fragment(std::size_t fragment, std::byte* input, std::byte* output) const {
  Fragment made;
  made.on_host = call_;
  made.on_host.send = input;
  made.on_host.recv = output;
  const std::size_t rest = shared() < call_.count ? 1 : 0;
  if (fragment < rest) {
    add_rest(made, input, output);
    return made;
  }
  // Each rank's number has been multiplied by the kernels, and avg divides where the last numbers are added.
  if (call_.op == ReduceOp::premul_sum) made.on_host.op = ReduceOp::sum;
  made.on_host.factor = 1.0;
  if (has_root(call_.collective)) made.on_host.root = layout_.host_of(call_.root);
  const std::size_t of_each = of_blocks() ? part_ : part_ * local_size_;
  const std::size_t begin = (fragment - rest) * of_each;
  const std::size_t size = std::min(of_each, shared() - begin);
  made.on_host.count = of_blocks() ? size : size / local_size_;
  switch (call_.collective) {
    case Collective::all_gather: add_gathered(made, begin, size, input, output); break;
    case Collective::reduce_scatter: add_scattered(made, begin, size, input, output); break;
    default: add_vector(made, begin, size / local_size_, input, output); break;
  }
  return made;
}

HierarchicalCall::IntraHostCall HierarchicalCall::intra_host_call(Collective collective, const std::byte* send,
                                                                  std::byte* recv, std::size_t count) const {
  IntraHostCall made{call_, 0};
  made.call.collective = collective;
  made.call.send = send;
  made.call.recv = recv;
  made.call.count = count;
  made.call.root = has_root(collective) ? layout_.local_rank_of(call_.root) : 0;
  if (call_.op == ReduceOp::avg || !reduces(collective)) made.call.op = ReduceOp::sum;
  if (!reduces(collective)) made.call.factor = 1.0;
  return made;
}

void HierarchicalCall::add_rest(Fragment& to, std::byte* input, std::byte* output) const {
  const std::size_t begin = shared();
  const std::size_t size = call_.count - begin;
  to.cross_host = false;
  to.on_host.count = size;
  if (reads_send(call_, rank_)) to.copies.in.push_back({send_at(begin), input, size * element_});
  if (writes_recv(call_, rank_)) to.copies.out.push_back({recv_at(begin), output, size * element_});
}

// `begin`: of the vector's part; each rank's share of it follows that of the place before.
void HierarchicalCall::add_vector(Fragment& to, std::size_t begin, std::size_t share, std::byte* input,
                                  std::byte* output) const {
  const std::size_t bytes = share * element_;
  const std::size_t own = begin + static_cast<std::size_t>(layout_.local_rank()) * share;
  const bool root = rank_ == call_.root;
  const bool with_root = layout_.host_of(call_.root) == layout_.host();
  if (reduces(call_.collective)) {
    to.before.push_back(intra_host_call(Collective::reduce_scatter, send_at(begin), share_, share));
    to.copies.in.push_back({share_, input, bytes});
  }
  if (call_.collective == Collective::reduce) {
    if (!with_root) return;
    to.copies.out.push_back({share_, output, bytes});
    to.after.push_back(intra_host_call(Collective::gather, share_, root ? recv_at(begin) : nullptr, share));
    return;
  }
  if (call_.collective == Collective::broadcast && with_root) {
    to.before.push_back(intra_host_call(Collective::scatter, root ? send_at(begin) : nullptr, recv_at(own), share));
    to.copies.in.push_back({recv_at(own), input, bytes});
  } else {
    to.copies.out.push_back({recv_at(own), output, bytes});
  }
  to.after.push_back(intra_host_call(Collective::all_gather, recv_at(own), recv_at(begin), share));
}

// `size` elements of every rank's block, from `begin`.
void HierarchicalCall::add_gathered(Fragment& to, std::size_t begin, std::size_t size, std::byte* input,
                                    std::byte* output) const {
  const std::size_t bytes = size * element_;
  to.copies.in.push_back({send_at(begin), input, bytes});
  for (int host = 0; host < layout_.hosts(); ++host) {
    const auto block = [&](int place) {
      return recv_at(static_cast<std::size_t>(layout_.rank(host, place)) * call_.count + begin);
    };
    std::byte* const own = block(layout_.local_rank());
    std::byte* const come = host == layout_.host() ? send_at(begin) : output + static_cast<std::size_t>(host) * bytes;
    if (own != come) to.copies.out.push_back({own, come, bytes});
    to.after.push_back(intra_host_call(Collective::all_gather, own, block(0), size));
    to.after.back().stride = static_cast<std::size_t>(layout_.step()) * call_.count;
  }
}

void HierarchicalCall::add_scattered(Fragment& to, std::size_t begin, std::size_t size, std::byte* input,
                                     std::byte* output) const {
  const std::size_t bytes = size * element_;
  for (int host = 0; host < layout_.hosts(); ++host) {
    const std::byte* blocks = send_at(static_cast<std::size_t>(layout_.rank(host, 0)) * call_.count + begin);
    to.before.push_back(
        intra_host_call(Collective::reduce_scatter, blocks, share_ + static_cast<std::size_t>(host) * bytes, size));
    to.before.back().stride = static_cast<std::size_t>(layout_.step()) * call_.count;
  }
  to.copies.in.push_back({share_, input, hosts_ * bytes});
  to.copies.out.push_back({recv_at(begin), output, bytes});
}

}  // namespace tutti
