#include "base/check.h"

#include <string>

namespace tutti {

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "tutti: broken invariant at %s:%d: %s%s%s\n", file, line, expression, values.empty() ? "" : ": ",
               values.c_str());
  std::abort();
}

}  // namespace tutti
