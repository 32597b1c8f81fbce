#include "nccl/call_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/algorithms/table.h"
#include "nccl/config.h"

namespace tutti::nccl {
namespace {

constexpr int kMostPolicy = 3;  // all NCCL_CTA_POLICY_* together

/// Returns the text in small letters, without blanks.
std::string plain(std::string_view text) {
  std::string out;
  for (const unsigned char c : text) {
    if (std::isspace(c) == 0) out += static_cast<char>(std::tolower(c));
  }
  return out;
}

/// Adds Tutti's name, or names, of what NCCL calls so. NCCL's names end with a protocol, which Tutti has not.
void add_in_tutti_words(std::string_view name, std::vector<std::string>& names) {
  for (const std::string_view protocol : {"_ll", "_ll128", "_simple"}) {
    if (name.size() > protocol.size() && name.ends_with(protocol)) name.remove_suffix(protocol.size());
  }
  if (name == "ring") {  // or a chain, where the data of one rank goes to all, or the other way
    names.insert(names.end(), {"ring", "chain"});
  } else {
    names.emplace_back(name == "tree" ? "double_binary_tree" : name);
  }
}

/// The names of a selection; none where it is more than a list of them.
std::optional<std::vector<std::string>> names_in(std::string_view selection) {
  const std::string text = plain(selection);
  if (text.find_first_of("+^") != std::string::npos) return std::nullopt;
  std::vector<std::string> names;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!name.empty()) add_in_tutti_words(name, names);
  }
  return names;
}

Outcome read_selection(const char* function, Collective collective, const ncclCollConfig_t& known, CallConfig& config) {
  if (known.algSelection == nullptr) return {};
  const bool forced = known.forceAlgSelection != 0;
  std::optional<std::vector<std::string>> names = names_in(known.algSelection);
  if (!names && forced) {
    return {ncclInvalidArgument,
            fmt::format("{}: config.algSelection is '{}'; this library takes a list of names with commas between",
                        function, known.algSelection)};
  }
  if (!names) return {};
  if (!forced) {
    // Any algorithm that is named, "auto" too, keeps the call from ways that have none, such as GPUDirect.
    std::erase_if(*names, [&](const std::string& name) { return algorithms::find(collective, name) == nullptr; });
    if (!names->empty()) names->emplace_back("auto");
  }
  config.algorithm = fmt::format("{}", fmt::join(*names, ","));
  return {};
}

Outcome read_extensions(const char* function, const ncclConfigExt_t* option, CallConfig& config) {
  for (; option != nullptr; option = option->next) {
    if (option->key.vendorId != kVendor) continue;
    if (option->key.optionId != kDeterministic || option->val.i < 0 || option->val.i > 1) {
      return {ncclInvalidArgument,
              fmt::format("{}: config.ext has option {} of this library with value {}; expected option {} with 0 or 1",
                          function, option->key.optionId, option->val.i, kDeterministic)};
    }
    config.deterministic = option->val.i != 0;
  }
  return {};
}

}  // namespace

Outcome read_call_config(const char* function, Collective collective, const ncclCollConfig_t* given,
                         CallConfig& config) {
  if (given == nullptr) return {};
  constexpr std::size_t kLeast = offsetof(ncclCollConfig_t, launchCompletionEvent);  // what 2.31, the first, had
  ncclCollConfig_t known{};
  if (Outcome read = read_struct(function, "NCCL_COLLCONFIG_INITIALIZER", *given, kLeast, known); !read.ok()) {
    return read;
  }
  const auto wrong = [&](const char* field, int value, int most) -> Outcome {
    return {ncclInvalidArgument, fmt::format("{}: config.{} is {}; expected 0 to {}", function, field, value, most)};
  };
  if (known.forceAlgSelection != 0 && known.forceAlgSelection != 1) {
    return wrong("forceAlgSelection", known.forceAlgSelection, 1);
  }
  if (known.CTAPolicy != kUndefinedInt && (known.CTAPolicy < 0 || known.CTAPolicy > kMostPolicy)) {
    return wrong("CTAPolicy", known.CTAPolicy, kMostPolicy);
  }
  if (known.launchCompletionEvent != nullptr) {
    return {ncclInvalidUsage,
            fmt::format("{}: config.launchCompletionEvent is set; this library records no events, expected null",
                        function)};
  }
  if (Outcome read = read_extensions(function, known.ext, config); !read.ok()) return read;
  return read_selection(function, collective, known, config);
}

}  // namespace tutti::nccl
