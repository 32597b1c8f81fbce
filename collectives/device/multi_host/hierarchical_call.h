// A call on device memory in a layout of hosts (host_layout.h), as fragments. Each fragment says what kernels do among
// the ranks of this host before and after it, what is copied, and which call on the host it is.
// How: a fragment's call on the host is among the ranks at the same place on all hosts. So every rank brings its share
//   of the host's data to the network, and nothing crosses it twice.
//
//   collective       kernels before    on the network, of a share   kernels after
//   all_reduce       reduce_scatter    all_reduce                   all_gather
//   reduce           reduce_scatter    reduce                       gather, on the root's host
//   broadcast        scatter (there)   broadcast                    all_gather
//   reduce_scatter   reduce_scatter    reduce_scatter               -
//   all_gather       -                 all_gather                   all_gather
//
// The last two work on blocks of all ranks: one kernel's call for the blocks of each host. These lie `stride` apart
// where a fragment has but a part of each. Elements that the ranks of a host cannot share evenly are a fragment of
// their own, among all ranks, without kernels.
// Threads: pure; any.
// Limits: the five collectives above, not in deterministic mode.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/call.h"
#include "collectives/device/multi_host/host_layout.h"
#include "collectives/device/multi_host/host_staging.h"

namespace tutti {

class HierarchicalCall {
 public:
  /// Whether it is one of the five. (Not in deterministic mode: sums are formed inside hosts first.)
  static bool serves(Collective collective);

  /// REQUIRES: the call is valid, of at least a byte for each rank, and asks for no algorithm. `share`: device memory
  /// of slot_bytes, where kernels leave what they make for a fragment. `slot_bytes`: for what goes in, and what comes
  /// out.
  HierarchicalCall(const Call& call, const HostLayout& layout, std::byte* share, std::size_t slot_bytes);

  const Call& whole() const { return call_; }
  /// The most elements of a share, or of a block, in a fragment: what all ranks must have in common.
  std::size_t part() const { return part_; }
  std::size_t fragments() const;

  struct IntraHostCall {
    Call call;               // among the ranks of this host, by place
    std::size_t stride = 0;  // as executor::Shape::stride
  };
  struct Fragment {
    std::vector<IntraHostCall> before;
    HostStaging::Fragment copies;
    Call on_host;
    bool cross_host = true;  // among the ranks at this place, by host; else among all ranks
    std::vector<IntraHostCall> after;
  };
  /// Fragment `fragment` (from 0), with these slots.
  Fragment fragment(std::size_t fragment, std::byte* input, std::byte* output) const;

 private:
  bool of_blocks() const {
    return call_.collective == Collective::all_gather || call_.collective == Collective::reduce_scatter;
  }
  /// Elements that all ranks of a host have as many of.
  std::size_t shared() const { return of_blocks() ? call_.count : call_.count / local_size_ * local_size_; }
  IntraHostCall intra_host_call(Collective collective, const std::byte* send, std::byte* recv, std::size_t count) const;
  void add_rest(Fragment& to, std::byte* input, std::byte* output) const;
  void add_vector(Fragment& to, std::size_t begin, std::size_t share, std::byte* input, std::byte* output) const;
  void add_gathered(Fragment& to, std::size_t begin, std::size_t size, std::byte* input, std::byte* output) const;
  void add_scattered(Fragment& to, std::size_t begin, std::size_t size, std::byte* input, std::byte* output) const;
  /// Element `index` of the caller's buffers.
  std::byte* send_at(std::size_t index) const;
  std::byte* recv_at(std::size_t index) const;

  const Call call_;
  const HostLayout& layout_;
  const int rank_;
  const std::size_t hosts_;
  const std::size_t local_size_;
  const std::size_t element_;
  std::byte* const share_;
  std::size_t part_ = 1;
};

}  // namespace tutti
