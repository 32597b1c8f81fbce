// For tests: another driver in the place of the machine's.
#pragma once

#include "device/driver.h"

namespace tutti::device {

/// Makes this table the driver; null: the machine's own again. It must outlive its use. REQUIRES: no thread uses the
/// driver, or anything that was made with it.
void set_driver_for_tests(const Driver* table);

}  // namespace tutti::device
