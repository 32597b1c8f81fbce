#include "training/tensor/abort.h"

#include <fmt/format.h>

namespace tutti::training {

void fail_on_all(Communicator comm, const std::string& what) {
  const std::string message = fmt::format("rank {}: {}", comm.rank(), what);
  comm.abort(message);
  throw Error(Code::invalid_argument, message);
}

void rethrow_on_all(Communicator comm, const std::string& name) {
  try {
    throw;
  } catch (const Error& error) {
    // The first reason given is the one that everybody sees: an error that came from another rank stays that rank's.
    comm.abort(error.what());
    throw;
  } catch (const c10::Error& error) {
    fail_on_all(comm, fmt::format("{}: {}", name, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    fail_on_all(comm, fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace tutti::training
