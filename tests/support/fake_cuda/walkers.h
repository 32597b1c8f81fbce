// The kernels of the device executor for a fake driver: a launch of walk_f32 runs the walker on host threads.
#pragma once

#include "tests/support/fake_cuda/driver.h"

namespace tutti::testing {

void add_walkers(FakeDriver& driver);

}  // namespace tutti::testing
