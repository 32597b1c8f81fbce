// Which cores this process may use, and staying on some of them.
#pragma once

#include <span>
#include <vector>

namespace tutti {

/// The numbers of the cores that the calling thread may run on, ascending; empty when the system does not tell.
std::vector<int> allowed_cores();

/// Binds the calling thread, and what it starts from now on. Who cannot be bound runs on as before: it costs speed, no
/// more.
void bind_to(std::span<const int> cores);

}  // namespace tutti
