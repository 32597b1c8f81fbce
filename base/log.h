// What the library says on standard error. Quiet by default: failures only; TUTTI_LOG=info or debug says more.
// Each message is one line, written at once: "tutti: rank 1 myhost: <message>". Thread-safe.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace tutti::log {

enum class Level : int { error, info, debug };

/// Is a message of this level printed? Costs one load after the first call.
bool enabled(Level level);

/// The rank that this process's lines name; until then they name none.
void set_rank(int rank);
/// The same for the calling thread alone, where ranks are threads. -1: the process's again.
void set_thread_rank(int rank);

/// The line as it is printed, with its newline; control characters in `message` become spaces.
std::string line(int rank, std::string_view host, std::string_view message);

void write(Level level, fmt::string_view format, fmt::format_args arguments);

template <class... A>
void error(fmt::format_string<A...> format, A&&... arguments) {
  write(Level::error, format, fmt::make_format_args(arguments...));
}

template <class... A>
void info(fmt::format_string<A...> format, A&&... arguments) {
  if (enabled(Level::info)) write(Level::info, format, fmt::make_format_args(arguments...));
}

template <class... A>
void debug(fmt::format_string<A...> format, A&&... arguments) {
  if (enabled(Level::debug)) write(Level::debug, format, fmt::make_format_args(arguments...));
}

}  // namespace tutti::log
