// Whether tests of device memory run on this machine's own driver: TUTTI_TEST_DRIVER=machine (./dev gpu device).
#pragma once

namespace tutti::testing {

bool on_the_machine();

/// How many GPUs that one has. The first call asks in a child, since a process that has used a driver must not fork:
/// main() makes it before any test.
int machine_gpus();

}  // namespace tutti::testing
