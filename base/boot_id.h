// Which boot of a kernel this is: the same in all containers and namespaces of one machine, different on any other.
//
// Thread-safe.
#pragma once

#include <string>

namespace tutti {

/// Empty: the system does not tell.
std::string boot_id();

}  // namespace tutti
