// Which cores this process may use, and staying on some of them.
#pragma once

#include <span>
#include <vector>

namespace tutti {

/// The numbers of the cores that the calling thread may run on, ascending; empty if the system call fails.
std::vector<int> allowed_cores();

/// Binds the calling thread and the threads that it starts later. A failure is ignored: it costs speed only.
void bind_to(std::span<const int> cores);

}  // namespace tutti
