// How a failure is returned inside the library: Status (must be looked at) and Result<T> (a value or a Status).
//
// How: the function that finds an error writes its sentence (who, which call, what was expected). Callers return it
// unchanged. Success costs one null pointer. Broken invariants are not a Status: see check.h.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tutti/types.hpp"

namespace tutti {

const char* name_of(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : rep_(std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return ok() ? Code::ok : rep_->code; }
  const std::string& message() const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;  // null means ok; shared because every later call returns the same failure
};

Status invalid_argument(std::string message);
Status unsupported(std::string message);
/// Adds errno's text and the limit behind it: "<what>: Too many open files (... ulimit -n)".
Status system_error(const std::string& what, int error_number);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok());
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  /// REQUIRES: ok().
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tutti

/// Returns from this function if `expression` is a failure.
#define TUTTI_TRY(expression)                                                                                \
  do {                                                                                                       \
    if (::tutti::Status tutti_try_status_ = (expression); !tutti_try_status_.ok()) return tutti_try_status_; \
  } while (false)

/// `TUTTI_ASSIGN(auto x, f());` where f returns Result<X>: takes the value, or returns the failure from this function.
#define TUTTI_CONCAT_INNER_(a, b) a##b
#define TUTTI_CONCAT_(a, b) TUTTI_CONCAT_INNER_(a, b)
#define TUTTI_ASSIGN(declaration, expression) \
  TUTTI_ASSIGN_(TUTTI_CONCAT_(tutti_result_, __LINE__), declaration, expression)
#define TUTTI_ASSIGN_(result, declaration, expression) \
  auto result = (expression);                          \
  if (!result.ok()) return result.status();            \
  declaration = result.take()
