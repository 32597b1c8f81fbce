// Broken invariants of the library itself: print both values and abort. Not for errors that a user or a peer can cause.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace tutti {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& values);

template <class A, class B>
[[noreturn]] void check_failed(const char* file, int line, const char* expression, const A& a, const B& b) {
  std::ostringstream values;
  values << a << " vs " << b;
  check_failed(file, line, expression, values.str());
}

}  // namespace tutti

#define TUTTI_CHECK(condition)                                                              \
  do {                                                                                      \
    if (!(condition)) ::tutti::check_failed(__FILE__, __LINE__, #condition, std::string{}); \
  } while (false)
#define TUTTI_CHECK_OP_(a, op, b)                                                                                  \
  do {                                                                                                             \
    const auto& tutti_a_ = (a);                                                                                    \
    const auto& tutti_b_ = (b);                                                                                    \
    if (!(tutti_a_ op tutti_b_)) ::tutti::check_failed(__FILE__, __LINE__, #a " " #op " " #b, tutti_a_, tutti_b_); \
  } while (false)
#define TUTTI_CHECK_EQ(a, b) TUTTI_CHECK_OP_(a, ==, b)
#define TUTTI_CHECK_LE(a, b) TUTTI_CHECK_OP_(a, <=, b)
#define TUTTI_CHECK_LT(a, b) TUTTI_CHECK_OP_(a, <, b)
