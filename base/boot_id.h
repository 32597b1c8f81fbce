// The id of this boot of the kernel: the same in all containers and namespaces of one machine, different on others.
// Threads: any.
#pragma once

#include <string>

namespace tutti {

/// Returns an empty text if the system has no such id.
std::string boot_id();

}  // namespace tutti
