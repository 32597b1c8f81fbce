#include "cli/cross_memory.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/check.h"
#include "transport/shm/cross_memory.h"

namespace tutti::cli {
namespace {

constexpr std::uint64_t kFresh = 1;  // in the holder only; other processes have 0 at that address
constexpr std::uint64_t kWritten = 2;
std::uint64_t word = 0;

struct Pipe {
  int read_end;
  int write_end;
  Pipe() {
    int ends[2];
    TUTTI_CHECK_EQ(pipe(ends), 0);
    read_end = ends[0];
    write_end = ends[1];
  }
};

/// Returns the reader's error about the holder's memory; empty if all went well.
std::string reach(pid_t holder) {
  std::uint64_t seen = 0;
  const auto at = reinterpret_cast<std::uint64_t>(&word);
  if (const Status status = transport::cross_memory_read(holder, at, &seen, sizeof(seen)); !status.ok()) {
    return status.message();
  }
  if (seen != kFresh) return "the kernel gave other bytes than were there";
  const std::uint64_t mine = kWritten;
  if (const Status status = transport::cross_memory_write(holder, &mine, at, sizeof(mine)); !status.ok()) {
    return status.message();
  }
  return {};
}

std::string hint() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope > 0 ? fmt::format("; /proc/sys/kernel/yama/ptrace_scope is {}, with 0 it would be allowed", scope) : "";
}

}  // namespace

CrossMemory try_cross_memory() {
  const Pipe ready;
  const Pipe release;
  const pid_t holder = fork();
  if (holder == 0) {
    close(release.write_end);
    word = kFresh;
    char byte = 0;
    bool well = write(ready.write_end, &byte, 1) == 1;
    well = read(release.read_end, &byte, 1) == 0 && well;  // until the parent lets go
    _exit(well && word == kWritten ? 0 : 1);
  }
  char byte = 0;
  TUTTI_CHECK_EQ(read(ready.read_end, &byte, 1), 1);
  const Pipe result;  // made only now: the holder must not keep its end open
  const pid_t reader = fork();
  if (reader == 0) {
    const std::string text = reach(holder);
    _exit(write(result.write_end, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(result.write_end);
  CrossMemory outcome;
  char buffer[256];
  for (ssize_t got; (got = read(result.read_end, buffer, sizeof(buffer))) > 0;) {
    outcome.why.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  waitpid(reader, &status, 0);
  close(release.write_end);
  int written = 0;
  waitpid(holder, &written, 0);
  outcome.allowed = outcome.why.empty() && status == 0 && written == 0;
  if (!outcome.allowed) outcome.why = (outcome.why.empty() ? "a child process failed" : outcome.why) + hint();
  for (const int fd : {ready.read_end, ready.write_end, release.read_end, result.read_end}) close(fd);
  return outcome;
}

}  // namespace tutti::cli
