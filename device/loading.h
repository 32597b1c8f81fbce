// Fills the driver's table; for driver.cc and its tests.
#pragma once

#include "device/driver.h"

namespace tutti::device::internal {

/// Loads `library` and fills the table; the driver is not initialised. Errors: unsupported, naming what is missing.
Status load_driver(const char* library, Driver& table);

/// Makes kind_of() look for a driver again.
void forget_presence();

}  // namespace tutti::device::internal
