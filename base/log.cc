#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "base/options.h"

namespace tutti::log {
namespace {

std::atomic<int> process_rank{-1};
thread_local int thread_rank = -1;

Level wanted_level() {
  const std::string& text = options::text(Option::log);
  if (text == "debug") return Level::debug;
  return text == "info" ? Level::info : Level::error;
}

const std::string& host_name() {
  static const std::string name = [] {
    char buffer[256] = {};
    return ::gethostname(buffer, sizeof buffer - 1) == 0 ? std::string(buffer) : std::string("unknown host");
  }();
  return name;
}

}  // namespace

bool enabled(Level level) {
  static const Level wanted = wanted_level();
  return level <= wanted;
}

void set_rank(int rank) { process_rank.store(rank, std::memory_order_relaxed); }
void set_thread_rank(int rank) { thread_rank = rank; }

std::string line(int rank, std::string_view host, std::string_view message) {
  std::string text = rank >= 0 ? fmt::format("tutti: rank {} {}: ", rank, host) : fmt::format("tutti: {}: ", host);
  for (const char c : message) text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  text += '\n';
  return text;
}

void write(Level level, fmt::string_view format, fmt::format_args arguments) {
  if (!enabled(level)) return;
  const int rank = thread_rank >= 0 ? thread_rank : process_rank.load(std::memory_order_relaxed);
  const std::string text = line(rank, host_name(), fmt::vformat(format, arguments));
  // One write, so that lines of different ranks do not mix; there is nowhere to report that it failed.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace tutti::log
