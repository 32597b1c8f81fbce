#if TUTTI_HAS_CUDA

#include "tests/support/machine_driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "device/driver.h"

namespace tutti::testing {

bool on_the_machine() {
  const char* driver = std::getenv("TUTTI_TEST_DRIVER");
  return driver != nullptr && std::strcmp(driver, "machine") == 0;
}

int machine_gpus() {
  static const int count = [] {
    const pid_t pid = fork();
    if (pid == 0) {
      const Result<int> found = device::device_count();
      _exit(found.ok() ? found.value() : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return count;
}

}  // namespace tutti::testing

#endif  // TUTTI_HAS_CUDA
