#include "tests/support/plan_oracle.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/support/oracles/reduce_reference.h"

namespace tutti::testing {

namespace {

using executor::Prepared;
using executor::PreparedRange;
using executor::PreparedStep;
using plan::Space;
using plan::StepKind;

class Oracle {
 public:
  Oracle(const std::shared_ptr<const plan::Plan>& plan, const executor::Shape& shape, std::span<const OracleRank> ranks)
      : ranks_(ranks) {
    executor::PlanLimits room;
    room.slice_bytes = room.scratch_half = room.published_half = std::size_t{1} << 40;
    for (int r = 0; r < plan->ranks; ++r) {
      auto prepared = executor::prepare(plan, r, shape, room, ~std::size_t{0});
      if (!prepared.ok()) throw std::runtime_error(prepared.status().message());
      prepared_.push_back(prepared.take());
    }
    const std::size_t slot = (shape.count + 1) * size_of(shape.type);
    for (int r = 0; r < plan->ranks; ++r) {
      scratch_.emplace_back(static_cast<std::size_t>(plan->slots), std::vector<std::byte>(slot));
      published_.emplace_back(static_cast<std::size_t>(plan->published), std::vector<std::byte>(slot));
    }
  }

  bool run() {
    std::vector<std::tuple<int, std::size_t, std::size_t>> cursors;  // rank, lane, step
    for (std::size_t r = 0; r < prepared_.size(); ++r) {
      for (std::size_t l = 0; l < prepared_[r]->lanes.size(); ++l) cursors.emplace_back(static_cast<int>(r), l, 0);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [rank, lane, step] : cursors) {
        const auto& steps = prepared_[static_cast<std::size_t>(rank)]->lanes[lane];
        while (step < steps.size() && advance(rank, static_cast<int>(lane), steps[step])) {
          ++step;
          moved = true;
        }
      }
    }
    for (const auto& [rank, lane, step] : cursors) {
      if (step < prepared_[static_cast<std::size_t>(rank)]->lanes[lane].size()) return false;
    }
    return true;
  }

 private:
  bool advance(int rank, int lane, const PreparedStep& step) {
    if (step.guard != plan::Guard::always) return true;  // one round
    switch (step.kind) {
      case StepKind::open: return true;
      case StepKind::signal: ++signals_[{rank, step.peer, lane, step.channel}]; return true;
      case StepKind::wait: {
        int& count = signals_[{step.peer, rank, lane, step.channel}];
        if (count == 0) return false;
        --count;
        return true;
      }
      default: break;
    }
    const Prepared& p = *prepared_[static_cast<std::size_t>(rank)];
    const PreparedRange* ranges = p.ranges.data() + step.sources;
    for (int i = 0; i < step.pieces; ++i) {
      std::vector<const void*> sources;
      std::vector<void*> destinations;
      std::vector<double> factors;
      std::size_t elements = p.piece_elements(step.piece + i);
      for (std::uint32_t k = 0; k < step.source_count + step.destination_count; ++k) {
        std::byte* at = address(p, rank, ranges[k], i, elements);
        if (k < step.source_count) {
          sources.push_back(at);
          const auto owner = static_cast<std::size_t>(ranges[k].range.rank);
          factors.push_back(ranges[k].raw_input ? ranks_[owner].factor : 1.0);
        } else {
          destinations.push_back(at);
        }
      }
      if (elements == 0) continue;
      const bool premultiply = p.shape.op == ReduceOp::premul_sum;
      if (step.kind != StepKind::reduce && !premultiply) {
        for (void* to : destinations) std::memmove(to, sources[0], elements * p.element);
        continue;
      }
      const reduce::Spec spec{.type = p.shape.type,
                              .op = p.shape.op,
                              .divide_by = step.last && p.shape.op == ReduceOp::avg ? p.ranks : 0.0,
                              .factors = premultiply ? factors.data() : nullptr};
      // The reference writes each destination as it goes, so a source may be one.
      reduce::reference::reduce(spec, destinations, sources, elements);
    }
    return true;
  }

  std::byte* address(const Prepared& p, int rank, const PreparedRange& range, int i, std::size_t& elements) {
    const auto owner = static_cast<std::size_t>(range.range.rank);
    const auto slot = static_cast<std::size_t>(range.range.first + i);
    switch (range.range.space) {
      case Space::scratch: return scratch_[owner].at(slot).data();
      case Space::published: return published_[owner].at(slot).data();
      default: break;
    }
    std::size_t begin = p.piece_begin(p.placement_of(range.range.space), range.range.first + i);
    if (const auto* uneven = ranks_[static_cast<std::size_t>(rank)].uneven) {
      const Share share = uneven->share_of(range.range, i);
      begin = share.offset;
      elements = share.size;
    }
    std::byte* base =
        range.range.space == Space::input ? const_cast<std::byte*>(ranks_[owner].input) : ranks_[owner].output;
    return base + begin * p.element;
  }

  std::span<const OracleRank> ranks_;
  std::vector<std::shared_ptr<Prepared>> prepared_;
  std::vector<std::vector<std::vector<std::byte>>> scratch_;
  std::vector<std::vector<std::vector<std::byte>>> published_;
  std::map<std::tuple<int, int, int, int>, int> signals_;
};

}  // namespace

bool run_by_reference(const std::shared_ptr<const plan::Plan>& plan, const executor::Shape& shape,
                      std::span<const OracleRank> ranks) {
  return Oracle(plan, shape, ranks).run();
}

}  // namespace tutti::testing
