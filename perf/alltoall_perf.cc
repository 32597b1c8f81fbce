#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

/// Out of place only, as nccl-tests checks it.
class AllToAll final : public PerfCollective {
  const char* name() const override { return "all_to_all"; }
  bool has_in_place() const override { return false; }
  Elements elements(std::size_t total, int ranks, std::size_t type_bytes) const override {
    const std::size_t share = share_of(total, ranks, type_bytes);
    return {share * static_cast<std::size_t>(ranks), share * static_cast<std::size_t>(ranks), share};
  }
  double bus_factor(int ranks) const override { return all_but_own(ranks); }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count * static_cast<std::size_t>(place.ranks), .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    std::vector<Block> blocks;
    const std::size_t phase = static_cast<std::size_t>(place.rank) * count;  // of the sender's part for this rank
    for (int rank = 0; rank < place.ranks; ++rank) {
      blocks.push_back(
          {.offset = static_cast<std::size_t>(rank) * count, .count = count, .source = rank, .phase = phase});
    }
    return blocks;
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.all_to_all(a.send, a.recv, a.count, a.type, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::AllToAll()); }
