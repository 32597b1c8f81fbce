#include "collectives/executor/host/base_table.h"

#include "collectives/executor/net_record.h"
#include "collectives/executor/prepared.h"

namespace tutti::executor {

using plan::Space;

BaseTable::BaseTable(transport::Transport& transport, const SignalLinks& links, int rank)
    : sizes_(transport.sizes()),
      express_(transport.sizes().express_calls()),
      published_(transport.sizes().express_bytes()) {
  const int ranks = sizes_.ranks;
  for (int r = 0; r < ranks; ++r) express_cells_.push_back(transport.window(r).express);
  for (std::size_t half = 0; half < 2; ++half) {
    Bases& bases = halves_[half];
    bases.resize(static_cast<std::size_t>(kBaseRows * ranks));
    for (int r = 0; r < ranks; ++r) {
      if (links.is_remote(r)) continue;  // PlanWalker::put_remote() finds its scratch; the rest is out of reach
      bases[base_index(Space::scratch, ranks, r)] = transport.window(r).scratch + half * sizes_.scratch_half;
      bases[base_index(Space::published, ranks, r)] = transport.window(r).published + half * sizes_.published_half;
    }
  }
  for (std::uint64_t call = 0; call < express_.size(); ++call) {
    Bases& bases = express_[call];
    bases.resize(static_cast<std::size_t>(kBaseRows * ranks));
    for (int r = 0; r < ranks; ++r) {
      const bool remote = links.is_remote(r);
      const auto payload = [remote](transport::ExpressCell& cell) {
        return remote ? net_payload(cell) : cell.payload();
      };
      std::byte* come = payload(express_cell(rank, r, call));
      bases[base_index(Space::scratch, ranks, r)] = payload(express_cell(r, rank, call));
      bases[base_index(Space::published, ranks, r)] = r == rank ? published_.data() : come;
      bases[base_index(kInbox, ranks, r)] = come;
    }
  }
}

}  // namespace tutti::executor
