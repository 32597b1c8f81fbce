#include "collectives/plan/count.h"

#include <cstddef>

namespace tutti::plan {
namespace {

void add_step(const Step& step, int rank, const std::vector<int>& hosts, Counts& counts) {
  ++counts.steps;
  switch (step.kind) {
    case StepKind::put: {
      const std::int64_t pieces = step.sources[0].count;
      ++counts.messages;
      counts.pieces_put += pieces;
      if (!hosts.empty() && hosts[rank] != hosts[step.peer]) counts.pieces_put_away += pieces;
      break;
    }
    case StepKind::copy:
    case StepKind::reduce:
      for (const Range& range : step.sources) counts.pieces_read += range.rank != rank ? range.count : 0;
      for (const Range& range : step.destinations) counts.pieces_written += range.rank != rank ? range.count : 0;
      if (step.kind == StepKind::reduce) {
        counts.pieces_reduced += static_cast<std::int64_t>(step.sources.size() - 1) * step.sources[0].count;
      }
      break;
    case StepKind::signal: counts.signals += step.channel == Channel::data ? 1 : 0; break;
    case StepKind::open:
    case StepKind::wait: break;
  }
}

}  // namespace

std::vector<Counts> count(const Plan& plan, const std::vector<int>& host_of_rank) {
  std::vector<Counts> counts(plan.of_rank.size());
  for (std::size_t rank = 0; rank < plan.of_rank.size(); ++rank) {
    for (const Lane& lane : plan.of_rank[rank].lanes) {
      for (const Step& step : lane.steps) add_step(step, static_cast<int>(rank), host_of_rank, counts[rank]);
    }
  }
  return counts;
}

Counts total(const std::vector<Counts>& counts) {
  Counts sum;
  for (const Counts& one : counts) {
    sum.steps += one.steps;
    sum.messages += one.messages;
    sum.pieces_put += one.pieces_put;
    sum.pieces_put_away += one.pieces_put_away;
    sum.pieces_read += one.pieces_read;
    sum.pieces_written += one.pieces_written;
    sum.pieces_reduced += one.pieces_reduced;
    sum.signals += one.signals;
  }
  return sum;
}

}  // namespace tutti::plan
