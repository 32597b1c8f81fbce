// What a user may write into the environment or on a command line. The first byte chooses the option; what is accepted
// is printed and must be read again as the same value.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/parse.h"

namespace tutti {
namespace {

void try_value(const std::string& name, const std::string& text) {
  const auto lookup = [&](const std::string& value) {
    return options::Values([&](const char* asked) { return name == asked ? value.c_str() : nullptr; });
  };
  const options::Values values = lookup(text);
  if (!values.check().ok()) return;
  for (const options::Row& row : values.all()) {
    // Durations pass through a double, which is exact up to 2^53 ns (104 days); beyond, printing may round.
    const bool exact = row.type != options::Type::duration ||
                       values.duration(row.option) < std::chrono::nanoseconds(std::int64_t{1} << 53);
    if (row.name != name || row.option == Option::secret || !exact) continue;
    const options::Values again = lookup(row.value);
    if (!again.check().ok() || again.all()[static_cast<std::size_t>(row.option)].value != row.value) std::abort();
  }
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<tutti::options::Row> rows = tutti::options::all();
  if (size == 0) return 0;
  // Through c_str(): an environment value ends at its first zero byte.
  const std::string text = std::string(reinterpret_cast<const char*>(data) + 1, size - 1).c_str();
  tutti::try_value(rows[data[0] % rows.size()].name, text);
  (void)tutti::parse_duration(text).ok();
  (void)tutti::parse_bytes(text).ok();
  return 0;
}
