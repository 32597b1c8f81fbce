#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace tutti {

namespace {

/// Returns the limit that an error number stands for, where it is always the same.
const char* limit_behind(int error_number) {
  switch (error_number) {
    case EMFILE: return " (open files of a process; ulimit -n)";
    case ENFILE: return " (open files of the machine; fs.file-max)";
    default: return "";
  }
}

}  // namespace

const char* name_of(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid argument";
    case Code::unsupported: return "unsupported";
    case Code::mismatch: return "mismatch";
    case Code::timeout: return "timeout";
    case Code::peer_died: return "peer died";
    case Code::aborted: return "aborted";
    case Code::system: return "system error";
    case Code::memory_limit: return "memory limit";
  }
  return "?";
}

const std::string& Status::message() const {
  static const std::string empty;
  return ok() ? empty : rep_->message;
}

Status invalid_argument(std::string message) { return {Code::invalid_argument, std::move(message)}; }
Status unsupported(std::string message) { return {Code::unsupported, std::move(message)}; }
Status system_error(const std::string& what, int error_number) {
  return {Code::system, what + ": " + std::strerror(error_number) + limit_behind(error_number)};
}

}  // namespace tutti
