// The text form of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {
namespace {

constexpr int kMostRanks = 1 << 16;  // of a parsed plan, so that a few bytes of text cannot ask for much memory

constexpr std::array<std::string_view, 4> kSpaces = {"input", "output", "scratch", "published"};
constexpr std::array<std::string_view, 6> kKinds = {"open", "put", "copy", "reduce", "signal", "wait"};
constexpr std::array<std::string_view, 3> kGuards = {"always", "from_third_round", "until_third_to_last"};
constexpr std::array<std::string_view, kChannels> kChannelNames = {"data", "credit"};

void append(std::string& text, const Range& range) {
  fmt::format_to(std::back_inserter(text), " {}@{}:{}", kSpaces[static_cast<int>(range.space)], range.rank,
                 range.first);
  if (range.count != 1) fmt::format_to(std::back_inserter(text), "..{}", range.first + range.count - 1);
}

void append(std::string& text, const Step& step) {
  fmt::format_to(std::back_inserter(text), "  {}", kKinds[static_cast<int>(step.kind)]);
  if (step.peer >= 0) fmt::format_to(std::back_inserter(text), " {}", step.peer);
  if (step.kind == StepKind::signal || step.kind == StepKind::wait) {
    fmt::format_to(std::back_inserter(text), " {}", kChannelNames[static_cast<int>(step.channel)]);
    if (step.guard != Guard::always)
      fmt::format_to(std::back_inserter(text), " {}", kGuards[static_cast<int>(step.guard)]);
  }
  if (step.last) text += " last";
  for (const Range& range : step.sources) append(text, range);
  if (!step.destinations.empty()) text += " ->";
  for (const Range& range : step.destinations) append(text, range);
  text += '\n';
}

template <std::size_t n>
std::optional<int> index_of(const std::array<std::string_view, n>& names, std::string_view name) {
  for (std::size_t i = 0; i < n; ++i) {
    if (names[i] == name) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::optional<std::int32_t> number(std::string_view word) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<Range> range_of(std::string_view word) {
  const std::size_t at = word.find('@');
  const std::size_t colon = word.find(':');
  if (at == word.npos || colon == word.npos || colon < at) return std::nullopt;
  const auto space = index_of(kSpaces, word.substr(0, at));
  const auto rank = number(word.substr(at + 1, colon - at - 1));
  std::string_view pieces = word.substr(colon + 1);
  const std::size_t dots = pieces.find("..");
  const auto first = number(pieces.substr(0, dots));
  const auto last = dots == pieces.npos ? first : number(pieces.substr(dots + 2));
  if (!space || !rank || !first || !last || *last < *first) return std::nullopt;
  if (*first == 0 && *last == INT32_MAX) return std::nullopt;  // the count would not fit
  return Range{static_cast<Space>(*space), *rank, *first, *last - *first + 1};
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<Plan> run() {
    if (!next_line()) return bad("the text is empty; expected a plan");
    TUTTI_TRY(header());
    while (next_line()) {
      if (words_[0] == "rank") {
        TUTTI_TRY(lane_line());
      } else {
        TUTTI_TRY(step_line());
      }
    }
    if (rank_ + 1 != plan_.ranks) {
      return bad(fmt::format("the text ends after rank {} of {}", rank_, plan_.ranks));
    }
    return std::move(plan_);
  }

 private:
  Status bad(const std::string& what) const {
    return invalid_argument(fmt::format("plan text, line {}: {}", line_, what));
  }

  /// A word of the text for an error: short and printable.
  static std::string quoted(std::string_view word) {
    std::string text = "'";
    for (const char c : word.substr(0, 40)) text += c >= ' ' && c <= '~' ? c : '?';
    return text + "'";
  }

  /// The words of the next line that has any.
  bool next_line() {
    while (!rest_.empty()) {
      const std::size_t end = rest_.find('\n');
      std::string_view line = rest_.substr(0, end);
      rest_ = end == rest_.npos ? std::string_view{} : rest_.substr(end + 1);
      ++line_;
      words_.clear();
      while (true) {
        const std::size_t begin = line.find_first_not_of(" \t\r");
        if (begin == line.npos) break;
        line.remove_prefix(begin);
        const std::size_t stop = std::min(line.find_first_of(" \t\r"), line.size());
        words_.push_back(line.substr(0, stop));
        line.remove_prefix(stop);
      }
      if (!words_.empty() && words_[0][0] != '#') return true;
    }
    return false;
  }

  Status header() {
    if (words_.size() != 14) {
      return bad("expected '<collective> <algorithm> ranks N pieces N root N slots N published N rank_order yes|no'");
    }
    bool known = false;
    for (int c = 0; c < kCollectives; ++c) {
      if (words_[0] != name_of(static_cast<Collective>(c))) continue;
      plan_.collective = static_cast<Collective>(c);
      known = true;
    }
    if (!known) return bad(quoted(words_[0]) + " is not a collective");
    plan_.algorithm = words_[1];
    const std::pair<std::string_view, int*> fields[] = {{"ranks", &plan_.ranks},
                                                        {"pieces", &plan_.pieces},
                                                        {"root", &plan_.root},
                                                        {"slots", &plan_.slots},
                                                        {"published", &plan_.published}};
    std::size_t at = 2;
    for (const auto& [name, value] : fields) {
      const auto given = number(words_[at + 1]);
      if (words_[at] != name || !given) {
        return bad(fmt::format("expected '{} N', got {} {}", name, quoted(words_[at]), quoted(words_[at + 1])));
      }
      *value = *given;
      at += 2;
    }
    if (plan_.ranks < 1 || plan_.ranks > kMostRanks) return bad(fmt::format("ranks must be 1 to {}", kMostRanks));
    if (plan_.pieces < 1) return bad("pieces must be at least 1");
    if (plan_.root >= plan_.ranks) return bad("the root must be one of the ranks");
    if (words_[12] != "rank_order" || (words_[13] != "yes" && words_[13] != "no"))
      return bad("expected 'rank_order yes|no'");
    plan_.rank_order = words_[13] == "yes";
    plan_.of_rank.resize(plan_.ranks);
    return {};
  }

  Status lane_line() {
    const auto rank = words_.size() == 4 && words_[2] == "lane" ? number(words_[1]) : std::nullopt;
    const auto lane = rank ? number(words_[3]) : std::nullopt;
    if (!lane) return bad("expected 'rank N lane N'");
    const bool next_lane = *rank == rank_ && static_cast<std::size_t>(*lane) == plan_.of_rank[rank_].lanes.size();
    const bool next_rank = *rank == rank_ + 1 && *rank < plan_.ranks && *lane == 0;
    if (!next_lane && !next_rank) return bad("ranks and their lanes must come in order, from 0");
    rank_ = *rank;
    plan_.of_rank[rank_].lanes.emplace_back();
    return {};
  }

  Status step_line() {
    if (rank_ < 0) return bad("expected 'rank 0 lane 0', got " + quoted(words_[0]));
    const auto kind = index_of(kKinds, words_[0]);
    if (!kind) return bad(quoted(words_[0]) + " is not a step");
    Step step;
    step.kind = static_cast<StepKind>(*kind);
    std::size_t at = 1;
    const bool has_peer = step.kind != StepKind::copy && step.kind != StepKind::reduce;
    if (has_peer) {
      const auto peer = at < words_.size() ? number(words_[at]) : std::nullopt;
      if (!peer) return bad(fmt::format("'{}' needs the number of a peer", words_[0]));
      step.peer = *peer;
      ++at;
    }
    if (step.kind == StepKind::signal || step.kind == StepKind::wait) {
      const auto channel = at < words_.size() ? index_of(kChannelNames, words_[at]) : std::nullopt;
      if (!channel) return bad("a signal or wait needs 'data' or 'credit'");
      step.channel = static_cast<Channel>(*channel);
      ++at;
      if (at < words_.size()) {
        const auto guard = index_of(kGuards, words_[at]);
        if (!guard) return bad(quoted(words_[at]) + " is not a guard");
        step.guard = static_cast<Guard>(*guard);
        ++at;
      }
    } else if (step.kind == StepKind::reduce && at < words_.size() && words_[at] == "last") {
      step.last = true;
      ++at;
    }
    const bool has_ranges = step.kind == StepKind::put || !has_peer;
    if (!has_ranges) {
      if (at != words_.size()) return bad(quoted(words_[at]) + " is one word too many");
    } else {
      TUTTI_TRY(ranges(at, step));
    }
    plan_.of_rank[rank_].lanes.back().steps.push_back(std::move(step));
    return {};
  }

  Status ranges(std::size_t at, Step& step) {
    std::vector<Range>* into = &step.sources;
    for (; at < words_.size(); ++at) {
      if (words_[at] == "->" && into == &step.sources) {
        into = &step.destinations;
        continue;
      }
      const auto range = range_of(words_[at]);
      if (!range)
        return bad(quoted(words_[at]) + " is not a range; expected space@rank:first or space@rank:first..last");
      into->push_back(*range);
    }
    if (step.sources.empty() || step.destinations.empty()) return bad("expected 'sources -> destinations'");
    return {};
  }

  std::string_view rest_;
  int line_ = 0;
  std::vector<std::string_view> words_;
  Plan plan_;
  int rank_ = -1;
};

}  // namespace

std::string print(const Plan& plan) {
  std::string text = fmt::format("{} {} ranks {} pieces {} root {} slots {} published {} rank_order {}\n",
                                 name_of(plan.collective), plan.algorithm, plan.ranks, plan.pieces, plan.root,
                                 plan.slots, plan.published, plan.rank_order ? "yes" : "no");
  for (int rank = 0; rank < static_cast<int>(plan.of_rank.size()); ++rank) {
    for (std::size_t lane = 0; lane < plan.of_rank[rank].lanes.size(); ++lane) {
      fmt::format_to(std::back_inserter(text), "rank {} lane {}\n", rank, lane);
      for (const Step& step : plan.of_rank[rank].lanes[lane].steps) append(text, step);
    }
  }
  return text;
}

Result<Plan> parse(const std::string& text) { return Parser(text).run(); }

}  // namespace tutti::plan
