#include "collectives/executor/memory_kind_check.h"

#include <fmt/format.h>

namespace tutti::executor {

CallSnapshot called_instead(const transport::CallRecord& own,
                            const transport::CallRecord (&theirs)[transport::kCallRing]) {
  const CallSnapshot mine = snapshot(own);
  if (mine.sequence == 0 || mine.next_of_other_kind == 0) return {};
  // It may have been written over by a later one, which says as much.
  const CallSnapshot other = snapshot(theirs[mine.next_of_other_kind % transport::kCallRing]);
  const bool first = other.sequence >= mine.next_of_other_kind && other.next_of_other_kind != 0 &&
                     other.next_of_other_kind <= mine.sequence;
  return first ? other : CallSnapshot{};
}

std::string mixed_text(const std::function<std::string(int)>& name, int on_host, const CallSnapshot& host_call,
                       int on_device, const CallSnapshot& device_call) {
  const std::string host =
      fmt::format("{} called {} as its call {} on host memory", name(on_host), host_call.text(), host_call.sequence);
  const std::string device = fmt::format("{} called {} as its call {} on device memory", name(on_device),
                                         device_call.text(), device_call.sequence);
  const bool host_first = on_host < on_device;
  return fmt::format("{}, {}; expected one kind of memory on all ranks", host_first ? host : device,
                     host_first ? device : host);
}

}  // namespace tutti::executor
