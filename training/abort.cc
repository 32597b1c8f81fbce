#include "training/abort.h"

#include <fmt/format.h>

namespace tutti::training {
namespace {

std::string by_rank(std::span<const Communicator> comms, const std::string& what) {
  for (const Communicator& comm : comms) {
    if (comm) return fmt::format("rank {}: {}", comm.rank(), what);
  }
  return what;
}

[[noreturn]] void abort_and_throw(std::span<const Communicator> comms, Code code, const std::string& message) {
  for (Communicator comm : comms) {
    if (!comm) continue;
    try {
      comm.abort(message);
    } catch (const std::exception&) {
      // A peer that waits in this one then ends by its timeout.
    }
  }
  throw Error(code, message);
}

}  // namespace

void fail_on_all(std::span<const Communicator> comms, const std::string& what) {
  abort_and_throw(comms, Code::invalid_argument, by_rank(comms, what));
}

void rethrow_on_all(std::span<const Communicator> comms, const std::string& name) {
  const auto named = [&](const std::string& reason) { return by_rank(comms, fmt::format("{}: {}", name, reason)); };
  try {
    throw;
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool has_rank = error.code() == Code::aborted || text.starts_with("rank ");
    abort_and_throw(comms, error.code(), has_rank ? text : named(text));
  } catch (const c10::Error& error) {
    abort_and_throw(comms, Code::aborted, named(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    abort_and_throw(comms, Code::aborted, named(error.what()));
  }
}

}  // namespace tutti::training
