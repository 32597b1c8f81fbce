// tutti plan: prints the plan of one algorithm, and draws it.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/even_share.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/names.h"
#include "cli/plan_svg.h"
#include "collectives/plan/count.h"
#include "collectives/plan/layout.h"
#include "collectives/plan/verify.h"

namespace tutti::cli {
namespace {

constexpr int kMostRanks = 1024;

struct Settings {
  std::string collective;
  std::string algorithm;
  int ranks = 4;
  int root = 0;
  std::string bytes = "1M";
  std::vector<int> hosts;
  std::string svg;
};

/// Returns comment lines: the pieces of a message of `bytes`, and the ranks' work with them.
std::string summary(const plan::Plan& plan, std::uint64_t bytes, const std::vector<int>& hosts) {
  const bool is_split = plan::placements_of(plan.collective).input == plan::Placement::split;
  const auto pieces = static_cast<std::uint64_t>(plan.pieces);
  const std::uint64_t piece = is_split ? largest_share(bytes, pieces) : bytes;
  std::string text = fmt::format("# {} bytes {}: {} pieces of up to {} bytes, {} inbound and {} published slots\n",
                                 bytes, is_split ? "in all" : "per block", pieces, piece, plan.slots, plan.published);
  const std::vector<plan::Counts> counts = plan::count(plan, hosts);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const plan::Counts& c = counts[rank];
    text += fmt::format(
        "# rank {}: {} steps, puts {} bytes in {} messages, reads {} and writes {} bytes of peers, {} signals\n", rank,
        c.steps, c.pieces_put * piece, c.messages, c.pieces_read * piece, c.pieces_written * piece, c.signals);
  }
  return text;
}

int fail(const std::string& sentence) {
  fmt::print(stderr, "tutti plan: {}\n", sentence);
  return 2;
}

int show(const Settings& settings) {
  const auto collective = collective_of(settings.collective);
  const algorithms::Algorithm* algorithm = collective ? algorithms::find(*collective, settings.algorithm) : nullptr;
  if (algorithm == nullptr) return fail("no algorithm has these names; there are" + all_names());
  const Result<std::uint64_t> bytes = parse_bytes(settings.bytes);
  if (!bytes.ok()) return fail(bytes.status().message());
  const algorithms::PlanRequest request{*collective, settings.ranks, settings.root, settings.hosts};
  if (!algorithms::serves(*algorithm, request)) {
    return fail(fmt::format(
        "{} {} does not serve {} ranks with root {} and {} hosts; the root must be a rank, and --hosts needs a "
        "number for each rank",
        settings.collective, settings.algorithm, settings.ranks, settings.root, settings.hosts.size()));
  }
  const plan::Plan plan = algorithm->build(request);
  if (const Status status = plan::verify(plan); !status.ok()) return fail("the plan is wrong: " + status.message());
  fmt::print("# {}: {}\n{}{}", algorithm->name, algorithm->summary, summary(plan, bytes.value(), settings.hosts),
             plan::print(plan));
  if (settings.svg.empty()) return 0;
  std::ofstream file(settings.svg);
  file << svg_of(plan);
  file.close();
  return file ? 0 : fail("cannot write " + settings.svg);
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand("plan", "Print the plan of an algorithm, or draw it");
  command->add_option("--collective", settings->collective, "all_reduce, all_gather, ...")->required();
  command->add_option("--algorithm", settings->algorithm, "ring, two_shot, ...")->required();
  command->add_option("--ranks", settings->ranks)->check(CLI::Range(1, kMostRanks))->capture_default_str();
  command->add_option("--root", settings->root, "of rooted collectives")->capture_default_str();
  command->add_option("--bytes", settings->bytes, "of the message, to show what the pieces are: 64, 4K, 1M, ...")
      ->capture_default_str();
  command->add_option("--hosts", settings->hosts, "the host of each rank, as in 0,0,0,1,2,2")->delimiter(',');
  command->add_option("--svg", settings->svg, "draw the plan into this file");
  command->callback([settings, &exit_code] { exit_code = show(*settings); });
}

}  // namespace tutti::cli
