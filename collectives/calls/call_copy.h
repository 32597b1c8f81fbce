// A call that runs later: with all that it points to besides the buffers, which may be gone by then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "collectives/call.h"

namespace tutti {

class CallCopy {
 public:
  CallCopy(const Call& call, int ranks) : call_(call), algorithm_(call.algorithm) {
    if (call.collective != Collective::all_to_allv) return;
    const auto lists = {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets};
    if (std::find(lists.begin(), lists.end(), nullptr) != lists.end()) return;  // validate() will say so
    for (const std::size_t* list : lists) counts_.insert(counts_.end(), list, list + ranks);
  }

  /// Valid for as long as this object stays where it is.
  Call call() const {
    Call call = call_;
    call.algorithm = algorithm_;
    const std::size_t ranks = counts_.size() / 4;
    if (ranks == 0) return call;
    call.send_counts = counts_.data();
    call.send_offsets = counts_.data() + ranks;
    call.recv_counts = counts_.data() + 2 * ranks;
    call.recv_offsets = counts_.data() + 3 * ranks;
    return call;
  }

 private:
  Call call_;
  std::vector<std::size_t> counts_;  // of an all_to_allv, one list after the other
  std::string algorithm_;
};

}  // namespace tutti
