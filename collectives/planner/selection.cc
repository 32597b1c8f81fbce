#include "collectives/planner/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/parse.h"
#include "collectives/planner/default_rules.h"

namespace tutti::planner {

using algorithms::Algorithm;

namespace {

constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();

std::string_view trim(std::string_view text) {
  constexpr const char* blanks = " \t\r";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = trim(text); !text.empty(); text = trim(text)) {
    const std::size_t end = std::min(text.find_first_of(" \t\r"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

Result<Collective> parse_collective(std::string_view word) {
  for (int i = 0; i < kCollectives; ++i) {
    if (word == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  }
  return invalid_argument(fmt::format("{} is not a collective", quote(word)));
}

Result<int> parse_count(std::string_view word) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 1) {
    return invalid_argument(fmt::format("{} is not a number of ranks", quote(word)));
  }
  return value;
}

}  // namespace

Result<Selection::Rule> Selection::parse_rule(std::string_view text, bool built_in) {
  const std::vector<std::string_view> words = words_of(text);
  const auto bad = [&](const std::string& why) {
    return invalid_argument(
        fmt::format("selection rule {}: {}; expected 'collective ranks bytes algorithm [plain|staged]', such as "
                    "'all_reduce * 0-8K one_shot'",
                    quote(text), why));
  };
  if (words.size() != 4 && words.size() != 5) return bad(fmt::format("{} words", words.size()));
  const std::string_view memory = words.size() == 5 ? words[4] : "any";
  if (words.size() == 5 && memory != "plain" && memory != "staged") {
    return bad(fmt::format("{} is neither 'plain' nor 'staged'", quote(memory)));
  }
  Rule rule{Collective::barrier,
            1,
            std::numeric_limits<int>::max(),
            0,
            kNoEnd,
            nullptr,
            words.size() == 5,
            memory == "staged",
            fmt::format("{}", fmt::join(words, " ")),
            built_in};
  const Result<Collective> collective = parse_collective(words[0]);
  if (!collective.ok()) return bad(collective.status().message());
  rule.collective = collective.value();
  if (words[1] != "*") {
    const std::size_t dash = words[1].find('-');
    const Result<int> low = parse_count(words[1].substr(0, dash));
    if (!low.ok()) return bad(low.status().message());
    rule.min_ranks = rule.max_ranks = low.value();
    if (dash != std::string_view::npos && words[1].substr(dash + 1) == "inf") {
      rule.max_ranks = std::numeric_limits<int>::max();
    } else if (dash != std::string_view::npos) {
      const Result<int> high = parse_count(words[1].substr(dash + 1));
      if (!high.ok()) return bad(high.status().message());
      rule.max_ranks = high.value();
    }
  }
  if (words[2] != "*") {
    const std::size_t dash = words[2].find('-');
    if (dash == std::string_view::npos) return bad(fmt::format("{} is not a range of bytes", quote(words[2])));
    const Result<std::uint64_t> from = parse_bytes(words[2].substr(0, dash));
    if (!from.ok()) return bad(from.status().message());
    rule.from = from.value();
    if (words[2].substr(dash + 1) != "inf") {
      const Result<std::uint64_t> to = parse_bytes(words[2].substr(dash + 1));
      if (!to.ok()) return bad(to.status().message());
      rule.to = to.value();
    }
  }
  rule.algorithm = algorithms::find(rule.collective, words[3]);
  if (rule.algorithm == nullptr) {
    return bad(fmt::format("{} has no algorithm {}", name_of(rule.collective), quote(words[3])));
  }
  return rule;
}

Status Selection::add(std::string_view rules, bool built_in) {
  while (!rules.empty()) {
    const std::size_t end = std::min(rules.find_first_of(";\n"), rules.size());
    std::string_view line = rules.substr(0, end);
    rules.remove_prefix(std::min(end + 1, rules.size()));
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    TUTTI_ASSIGN(Rule rule, parse_rule(line, built_in));
    rules_.push_back(std::move(rule));
  }
  return {};
}

Result<Selection> Selection::with_rules(std::string_view more) {
  Selection selection;
  const Status built_in = selection.add(kDefaultRules, true);
  TUTTI_CHECK(built_in.ok());
  TUTTI_TRY(selection.add(more, false));
  return selection;
}

std::string why_not(const Algorithm& algorithm, const Demand& demand) {
  const algorithms::PlanRequest request{demand.collective, demand.ranks, 0, {}};
  if (!algorithms::serves(algorithm, request)) return fmt::format("does not serve {} ranks", demand.ranks);
  if (demand.deterministic && reduces(demand.collective) && !algorithm.rank_order) {
    return "does not add in rank order, as deterministic mode demands";
  }
  if (algorithm.needs_load_store && !demand.load_store) return "needs peers' memory to be reachable by load and store";
  if (algorithm.opens_peers && !demand.buffers_open) return "needs the callers' buffers to be reachable by the peers";
  if (demand.in_place && !algorithm.in_place) return "cannot work in place";
  return {};
}

namespace {

Result<const Algorithm*> by_name(const Demand& demand, std::string_view name) {
  const Algorithm* const algorithm = algorithms::find(demand.collective, name);
  if (algorithm == nullptr) {
    return invalid_argument(fmt::format("{} has no algorithm {}", name_of(demand.collective), quote(name)));
  }
  const std::string why = why_not(*algorithm, demand);
  if (why.empty()) return algorithm;
  return invalid_argument(fmt::format("{} by {} was asked for, but it {}", name_of(demand.collective), name, why));
}

/// The first of the names, which is taken from their front.
std::string_view next_name(std::string_view& names) {
  const std::size_t end = std::min(names.find(','), names.size());
  const std::string_view name = trim(names.substr(0, end));
  names.remove_prefix(std::min(end + 1, names.size()));
  return name;
}

/// The first of the names that can serve; null where none stands before "auto". Errors: the first name's.
Result<const Algorithm*> by_names(const Demand& demand) {
  Status first;
  for (std::string_view rest = demand.algorithm; !rest.empty();) {
    const std::string_view name = next_name(rest);
    if (name == "auto") return nullptr;
    Result<const Algorithm*> found = by_name(demand, name);
    if (found.ok()) return found;
    if (first.ok()) first = found.status();
  }
  return first;
}

}  // namespace

std::string names_or_auto(std::string_view names) {
  return names.empty() ? std::string() : std::string(names) + ",auto";
}

Status check_names(Collective collective, std::string_view names) {
  for (std::string_view rest = names; !rest.empty();) {
    const std::string_view name = next_name(rest);
    if (name == "auto" || algorithms::find(collective, name) != nullptr) return {};
  }
  return invalid_argument(fmt::format("{} has no algorithm {}", name_of(collective), quote(names)));
}

bool is_named(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    if (algorithms::current_name(next_name(names)) == name) return true;
  }
  return false;
}

Result<Choice> Selection::choose(const Demand& demand, bool built_in_too) const {
  if (!demand.algorithm.empty()) {
    TUTTI_ASSIGN(const Algorithm* const named, by_names(demand));
    if (named != nullptr) return Choice{named, "asked for by name", nullptr};
  }
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (rule->built_in && !built_in_too) break;
    if (rule->collective != demand.collective || demand.ranks < rule->min_ranks || demand.ranks > rule->max_ranks ||
        demand.bytes < rule->from || demand.bytes >= rule->to || (rule->plain && !demand.plain) ||
        (rule->staged && demand.buffers_open) || !why_not(*rule->algorithm, demand).empty()) {
      continue;
    }
    return Choice{rule->algorithm, fmt::format("{} '{}'", rule->built_in ? "built-in rule" : "rule", rule->text),
                  nullptr};
  }
  if (!built_in_too) return Choice{};
  return unsupported(fmt::format("no rule serves {} of {} bytes on {} ranks{}{}", name_of(demand.collective),
                                 demand.bytes, demand.ranks, demand.deterministic ? ", deterministic" : "",
                                 demand.buffers_open ? "" : ", with buffers that peers cannot reach"));
}

Result<Choice> Selection::choose(const Demand& demand) const { return choose(demand, /*built_in_too=*/true); }

Result<Choice> Selection::choose_by_users(const Demand& demand) const { return choose(demand, /*built_in_too=*/false); }

std::string Selection::print() const {
  std::string text;
  for (const Rule& rule : rules_) text += rule.text + "\n";
  return text;
}

}  // namespace tutti::planner
