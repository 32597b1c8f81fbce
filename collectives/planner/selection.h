// Which algorithm serves a call: a readable list of rules.
//
//   rule        := collective ranks bytes algorithm [memory]      all_reduce * 0-8K one_shot
//   ranks       := '*' | N | N-M | N-inf
//   bytes       := '*' | A-B                               half open [A, B); sizes as 64, 8K, 1M; B may be inf
//   rules       := rule (';' rule)*                        newlines separate too; '#' begins a comment
//   memory      := 'plain' | 'staged'
// 'plain': only where some buffer of the call is not registered; 'staged': only where peers cannot reach such a buffer
// by the kernel's help either. Bytes are those of the largest buffer of the call: the vector, or all ranks' blocks
// together.
//
// How: the last rule that matches and can serve is taken, so a later rule is an exception to an earlier one. What users
//   add (option TUTTI_SELECTION) comes last.
// Errors: invalid_argument, for a rule that cannot be read or a name that cannot serve; unsupported, when no rule can
//   serve.
// Threads: immutable; any.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/algorithms/table.h"

namespace tutti::planner {

/// The demands of a call on an algorithm.
struct Demand {
  Collective collective = Collective::all_reduce;
  int ranks = 1;
  std::size_t bytes = 0;
  bool deterministic = false;
  bool load_store = true;      // the links have it
  bool plain = false;          // some buffer of the call is not registered
  bool buffers_open = true;    // peers can reach all buffers of the call, be it by cross-memory access
  bool in_place = false;       // some rank may be in place
  int lanes = 64;              // that a plan may have
  std::string_view algorithm;  // names, see CallOptions::algorithm; or empty
};

struct Choice {
  const algorithms::Algorithm* algorithm = nullptr;
  std::string reason;
  std::shared_ptr<const plan::Plan> plan;  // Planner gives it too
  std::size_t slice = 0;                   // from Planner, across hosts: what the message is cut into
};

/// Names as in Demand, and behind them what the planner chooses where none of these can serve.
std::string names_or_auto(std::string_view names);
/// Errors: invalid_argument; none of the names is an algorithm of the collective, or "auto".
Status check_names(Collective collective, std::string_view names);
/// Whether `name`, of an algorithm, is one of the names.
bool is_named(std::string_view names, std::string_view name);

class Selection {
 public:
  /// The built-in rules, and `more` behind them.
  static Result<Selection> with_rules(std::string_view more);

  /// Errors: invalid_argument (no such algorithm, or none that was named can serve this demand), unsupported (no rule
  /// can serve).
  Result<Choice> choose(const Demand& demand) const;
  /// Chooses by name and by the users' own rules alone. Returns no algorithm where these do not apply.
  Result<Choice> choose_by_users(const Demand& demand) const;
  /// All rules, in the grammar above.
  std::string print() const;

 private:
  struct Rule {
    Collective collective;
    int min_ranks;
    int max_ranks;
    std::size_t from;
    std::size_t to;
    const algorithms::Algorithm* algorithm;
    bool plain;  // or staged
    bool staged;
    std::string text;
    bool built_in;
  };
  Status add(std::string_view rules, bool built_in);
  static Result<Rule> parse_rule(std::string_view text, bool built_in);
  Result<Choice> choose(const Demand& demand, bool built_in_too) const;

  std::vector<Rule> rules_;
};

/// Empty when the algorithm can serve the demand; else why it cannot.
std::string why_not(const algorithms::Algorithm& algorithm, const Demand& demand);

}  // namespace tutti::planner
