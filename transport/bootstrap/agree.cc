#include "transport/bootstrap/agree.h"

#include <fmt/format.h>

#include <cstddef>

namespace tutti::bootstrap {
namespace {

// The first letter of what a rank contributes: a blob follows, or the digit of a code and its sentence.
constexpr char kWell = ' ';
constexpr char kFailed = '!';

Status failure_in(const std::string& text) {
  if (text.starts_with(kWell)) return {};
  if (text.size() < 2 || text[0] != kFailed) return Status(Code::mismatch, "it runs another version of Tutti");
  return {static_cast<Code>(text[1] - '0'), text.substr(2)};
}

}  // namespace

Result<std::vector<std::string>> agree_all(Bootstrap& bootstrap, const Status& mine, std::string_view blob) {
  std::string text;
  if (mine.ok()) {
    text.append(1, kWell).append(blob);
  } else {
    text = std::string{kFailed, static_cast<char>('0' + static_cast<int>(mine.code()))} + mine.message();
  }
  TUTTI_ASSIGN(std::vector<std::string> all, bootstrap.all_gather(text));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (const Status failure = failure_in(all[r]); !failure.ok()) {
      return Status(failure.code(),
                    fmt::format("{}: {}", name_of(static_cast<int>(r), bootstrap.roster()[r]), failure.message()));
    }
    all[r].erase(0, 1);
  }
  return all;
}

Result<std::vector<std::string>> agree_all(Bootstrap& bootstrap, const Result<std::string>& mine) {
  return agree_all(bootstrap, mine.status(), mine.ok() ? std::string_view(mine.value()) : std::string_view());
}

}  // namespace tutti::bootstrap
