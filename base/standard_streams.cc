#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tutti {

void open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest that is free, so this one, unless another thread has been quicker. Without /dev/null the root must do.
    int opened = open("/dev/null", O_RDWR);
    if (opened < 0) opened = open("/", O_PATH);
    if (opened > STDERR_FILENO) close(opened);
  }
}

int end_of_output(const char* program, int status) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "%s: standard output: %s\n", program,
               errno != 0 ? std::strerror(errno) : "not all could be written");
  return status == 0 ? 2 : status;
}

}  // namespace tutti
