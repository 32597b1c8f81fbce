// Messages of the library on standard error: failures only, or more with TUTTI_LOG=info or debug.
//
// How: each message is one line in one write: "tutti: rank 1 myhost: <message>".
// Threads: any.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace tutti::log {

enum class Level : int { error, info, debug };

/// Returns whether messages of this level are printed. Costs one load after the first call.
bool enabled(Level level);

/// Sets the rank in this process's lines, which have none before.
void set_rank(int rank);
/// Sets the rank in the calling thread's lines, for ranks that are threads. -1: back to the process's rank.
void set_thread_rank(int rank);

/// Returns the line as it is printed, with its newline; control characters in `message` become spaces.
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
