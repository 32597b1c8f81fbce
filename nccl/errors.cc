#include "nccl/errors.h"

#include <exception>
#include <mutex>
#include <new>
#include <utility>

namespace tutti::nccl {
namespace {

std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string& of_process() {  // guarded by mutex()
  static std::string text;
  return text;
}

std::string& of_thread() {
  thread_local std::string text;
  return text;
}

}  // namespace

ncclResult_t result_of(Code code) {
  switch (code) {
    case Code::ok: return ncclSuccess;
    case Code::invalid_argument: return ncclInvalidArgument;
    case Code::unsupported:
    case Code::mismatch: return ncclInvalidUsage;
    case Code::timeout:
    case Code::peer_died:
    case Code::aborted: return ncclRemoteError;
    case Code::system:
    case Code::memory_limit: return ncclSystemError;
  }
  return ncclInternalError;
}

Outcome outcome_of(const std::string& function, const Error& error) {
  const bool finishes =
      error.code() != Code::invalid_argument && error.code() != Code::unsupported && error.code() != Code::memory_limit;
  return {result_of(error.code()), function + ": " + error.what(), finishes};
}

Outcome outcome_of_current_exception(const std::string& function) {
  try {
    throw;
  } catch (const Error& error) {
    return outcome_of(function, error);
  } catch (const std::bad_alloc&) {
    return {ncclSystemError, function + ": there is not enough memory", true};
  } catch (const std::exception& error) {
    return {ncclInternalError, function + ": " + error.what(), true};
  } catch (...) {
    return {ncclInternalError, function + ": an unknown exception", true};
  }
}

Outcome not_served(const std::string& function, const std::string& why) {
  return {ncclInvalidUsage, function + ": not served by this library: " + why};
}

ncclResult_t fail(ncclResult_t result, std::string text) {
  of_thread() = text;
  const std::lock_guard lock(mutex());
  of_process() = std::move(text);
  return result;
}

const char* keep_for_caller(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

const char* last_error() {
  if (!of_thread().empty()) return keep_for_caller(of_thread());
  const std::lock_guard lock(mutex());
  return keep_for_caller(of_process());
}

TUTTI_NCCL_DEFINE(const char*, ncclGetErrorString, (ncclResult_t result)) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError: unhandled cuda error (ncclGetLastError has the sentence)";
    case ncclSystemError: return "ncclSystemError: unhandled system error (ncclGetLastError has the sentence)";
    case ncclInternalError: return "ncclInternalError: internal error (ncclGetLastError has the sentence)";
    case ncclInvalidArgument: return "ncclInvalidArgument: invalid argument (ncclGetLastError has the sentence)";
    case ncclInvalidUsage: return "ncclInvalidUsage: invalid usage (ncclGetLastError has the sentence)";
    case ncclRemoteError:
      return "ncclRemoteError: remote process exited, has aborted or is late (ncclGetLastError has the sentence)";
    case ncclInProgress: return "ncclInProgress: NCCL operation in progress";
    case ncclTimeout: return "ncclTimeout: timed out, a deadline has passed";
    case ncclNumResults: break;
  }
  return "unknown result code";
}

}  // namespace tutti::nccl
