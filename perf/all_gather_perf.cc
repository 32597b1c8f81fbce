#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

class AllGather final : public PerfCollective {
  const char* name() const override { return "all_gather"; }
  Elements elements(std::size_t total, int ranks, std::size_t type_bytes) const override {
    const std::size_t share = share_of(total, ranks, type_bytes);
    return {share, share * static_cast<std::size_t>(ranks), share};
  }
  double bus_factor(int ranks) const override { return all_but_own(ranks); }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    std::vector<Block> blocks;
    for (int rank = 0; rank < place.ranks; ++rank) {
      blocks.push_back({.offset = static_cast<std::size_t>(rank) * count, .count = count, .source = rank});
    }
    return blocks;
  }
  std::size_t in_place_send(const Place& place, std::size_t count) const override {
    return static_cast<std::size_t>(place.rank) * count;
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.all_gather(a.send, a.recv, a.count, a.type, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::AllGather()); }
