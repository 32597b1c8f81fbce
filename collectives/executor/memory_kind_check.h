// Ranks that pass host memory and device memory in the same call.
//
// A call on host memory is run by the host and one on device memory by kernels, each with signals of its own,
// so neither sees the other: both would wait until their deadline. But each rank's records say how its calls of the
// two kinds follow each other (transport::CallsMade), and a rank that waits compares: its own call of one kind, before
// which it has made b of the other kind, with a peer's call b + 1 (or a later one) of that kind. If the peer made that
// before its call of the first kind with the same number, the two ranks have made them in different orders.
//
// Nothing is found where a rank does not count: once it has captured calls into a graph, and among several hosts.
#pragma once

#include <functional>
#include <string>

#include "collectives/executor/record.h"

namespace tutti::executor {

/// Returns the call that a peer has made in place of `own`, this rank's. `theirs`: the peer's calls of the other kind.
/// Sequence 0: none, as far as can be seen by now.
CallSnapshot called_instead(const transport::CallRecord& own,
                            const transport::CallRecord (&theirs)[transport::kCallRing]);

/// "rank 0 (...) called all_reduce(4 x f32, sum) as its call 7 on host memory, rank 1 (...) called all_reduce(4 x f32,
/// sum) as its call 2 on device memory; expected one kind of memory on all ranks". Each rank says the same.
std::string mixed_text(const std::function<std::string(int)>& name, int on_host, const CallSnapshot& host_call,
                       int on_device, const CallSnapshot& device_call);

}  // namespace tutti::executor
