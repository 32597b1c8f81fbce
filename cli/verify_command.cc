// tutti verify: proves every algorithm for every number of ranks and prints a table, or proves the plan in a file.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/names.h"
#include "collectives/algorithms/common/samples.h"
#include "collectives/plan/count.h"
#include "collectives/plan/verify.h"

namespace tutti::cli {
namespace {

constexpr int kMostRanks = 1024;
constexpr int kBeyond[] = {96, 128, 200, 256, 300, 384, 511, 512, 777, 1000, 1024};
// Beyond these a proof is heavy. Plans that grow with the square of the ranks skip most such sizes and get one proof
// each for 512 and 1024 ranks, so that the whole stays within minutes ...
constexpr std::int64_t kManySteps = 700'000;
constexpr std::int64_t kManyPlaces = 300'000;  // ranks x pieces
// ... and within two gigabytes: those with the most steps for each pair of ranks (a ring, say) end at 512.
constexpr std::int64_t kMostSteps = 5'000'000;

struct Settings {
  int max_ranks = 64;
  std::string collective;
  std::string algorithm;
  std::string file;
  bool in_place = false;
};

struct Row {
  std::string rank_counts;
  int plans = 0;
  int proofs = 0;
  std::int64_t steps = 0;  // of all plans together
  std::string failure;     // empty: all proven
};

class Prover {
 public:
  explicit Prover(const algorithms::Algorithm& algorithm)
      : algorithm_(algorithm), shows_progress_(isatty(STDERR_FILENO) == 1) {}

  Row prove(int max_ranks) {
    row_.rank_counts = max_ranks == 1 ? "1" : fmt::format("1-{}", max_ranks);
    for (int ranks = 1; ranks <= max_ranks && row_.failure.empty(); ++ranks) prove_for(ranks);
    const std::int64_t steps_at_half = steps_of(max_ranks / 2);
    const std::int64_t steps_at_end = steps_of(max_ranks);
    for (const int ranks : kBeyond) {
      if (ranks <= max_ranks || !row_.failure.empty() || max_ranks < 64) continue;
      // All algorithms' plans grow with n, n log n or n^2 in all; the doubling says which.
      const bool is_square = steps_at_end > 3 * steps_at_half;
      const double factor = static_cast<double>(ranks) / max_ranks;
      const double steps = static_cast<double>(steps_at_end) * factor * (is_square ? factor : 1.5);
      const bool heavy = steps > kManySteps || (pieces_grow_ && std::int64_t{ranks} * ranks > kManyPlaces);
      if (heavy && ((ranks != 512 && ranks != kMostRanks) || steps > kMostSteps)) continue;
      prove_for(ranks, heavy);
      row_.rank_counts += fmt::format(",{}", ranks);
    }
    if (shows_progress_) fmt::print(stderr, "\r\033[K");
    return row_;
  }

 private:
  std::int64_t steps_of(int ranks) const {
    if (ranks < 1) return 1;
    return plan::total(plan::count(algorithm_.build(algorithms::sample_requests(algorithm_, ranks).front()))).steps;
  }

  /// `once`: one root, three rounds, not in place.
  void prove_for(int ranks, bool once = false) {
    if (shows_progress_) {
      fmt::print(stderr, "\r\033[K{} {}: {} ranks", name_of(algorithm_.collective), algorithm_.name, ranks);
      std::fflush(stderr);
    }
    std::vector<algorithms::PlanRequest> requests = algorithms::sample_requests(algorithm_, ranks);
    if (once) requests.resize(1);
    for (const algorithms::PlanRequest& request : requests) {
      const plan::Plan plan = algorithm_.build(request);
      pieces_grow_ = pieces_grow_ || plan.pieces > ranks / 2 + 2;
      ++row_.plans;
      row_.steps += plan::total(plan::count(plan)).steps;
      // Three rounds are the first to use a slot again. Other numbers differ only in how often, so small plans show
      // them.
      for (const int rounds : {1, 2, 3, 4}) {
        if ((ranks > 16 && (rounds == 2 || rounds == 4)) || (once && rounds != 3)) continue;
        for (const bool in_place : {false, true}) {
          if (in_place && (once || !algorithm_.in_place)) continue;
          ++row_.proofs;
          const Status status = plan::verify(plan, {.in_place = in_place, .rounds = rounds});
          if (status.ok()) continue;
          row_.failure = fmt::format("{} ranks, root {}, {} rounds{}: {}", ranks, request.root, rounds,
                                     in_place ? ", in place" : "", status.message());
          return;
        }
      }
    }
  }

  const algorithms::Algorithm& algorithm_;
  bool shows_progress_;
  bool pieces_grow_ = false;
  Row row_;
};

/// Proves the plan that the file has as text. Returns the exit status: 0 proven, 1 a broken rule, 2 no plan.
int verify_file(const Settings& settings) {
  std::ifstream file(settings.file);
  std::ostringstream text;
  const bool is_read = file && text << file.rdbuf();  // fails for a folder, and for an empty file
  const auto plan = is_read ? plan::parse(text.str()) : Result<plan::Plan>(invalid_argument("cannot be read"));
  if (!plan.ok()) {
    fmt::print(stderr, "tutti verify: {}: {}\n", settings.file, plan.status().message());
    return 2;
  }
  for (const int rounds : {1, 2, 3, 4}) {  // the third is the first that uses a slot again
    const Status status = plan::verify(plan.value(), {.in_place = settings.in_place, .rounds = rounds});
    if (status.ok()) continue;
    fmt::print("{}: {} round(s): {}\n", settings.file, rounds, status.message());
    return 1;
  }
  fmt::print("{}: OK\n", settings.file);
  return 0;
}

int verify_all(const Settings& settings) {
  const std::vector<const algorithms::Algorithm*> rows = rows_of(settings.collective, settings.algorithm);
  if (rows.empty()) {
    fmt::print(stderr, "tutti verify: no algorithm has these names; there are{}\n", all_names());
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  int failures = 0;
  std::int64_t plans = 0;
  fmt::print("{:<14} {:<18} {:>7} {:>8} {:>10}  {:<8} {}\n", "collective", "algorithm", "plans", "proofs", "steps",
             "result", "rank counts");
  for (const algorithms::Algorithm* algorithm : rows) {
    const Row row = Prover(*algorithm).prove(settings.max_ranks);
    failures += row.failure.empty() ? 0 : 1;
    plans += row.plans;
    fmt::print("{:<14} {:<18} {:>7} {:>8} {:>10}  {:<8} {}\n", name_of(algorithm->collective), algorithm->name,
               row.plans, row.proofs, row.steps, row.failure.empty() ? "proven" : "WRONG", row.rank_counts);
    if (!row.failure.empty()) fmt::print("    {}\n", row.failure);
    std::fflush(stdout);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} plans of {} algorithms, {} wrong, {:.1f} s\n", plans, rows.size(), failures, seconds);
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("verify", "Prove the plans of all algorithms: exact, race-free, no hang, in bounds");
  command
      ->add_option("--max-ranks", settings->max_ranks,
                   "every number of ranks up to this one; from 64 on, samples up to 1024 too")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  command->add_option("--collective", settings->collective, "only this collective");
  command->add_option("--algorithm", settings->algorithm, "only algorithms of this name");
  command->add_option("file", settings->file,
                      "prove the plan in this file instead, in the form that 'tutti plan' prints");
  command->add_flag("--in-place", settings->in_place, "with a file: input and output are the same memory");
  command->callback(
      [settings, &exit_code] { exit_code = settings->file.empty() ? verify_all(*settings) : verify_file(*settings); });
}

}  // namespace tutti::cli
