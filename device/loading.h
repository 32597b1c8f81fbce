// How the driver's table is filled; for driver.cc and the tests of it.
#pragma once

#include "device/driver.h"

namespace tutti::device::internal {

/// Loads `library` and fills the table; nothing is initialised. Errors: unsupported, naming what is missing.
Status load_driver(const char* library, Driver& table);

/// kind_of() looks for a driver anew.
void forget_presence();

}  // namespace tutti::device::internal
