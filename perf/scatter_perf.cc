#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

class Scatter final : public PerfCollective {
  const char* name() const override { return "scatter"; }
  bool rooted() const override { return true; }
  Elements elements(std::size_t total, int ranks, std::size_t type_bytes) const override {
    const std::size_t share = share_of(total, ranks, type_bytes);
    return {share * static_cast<std::size_t>(ranks), share, share};
  }
  double bus_factor(int ranks) const override { return all_but_own(ranks); }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count * static_cast<std::size_t>(place.ranks), .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.root, .phase = static_cast<std::size_t>(place.rank) * count}};
  }
  std::size_t in_place_recv(const Place& place, std::size_t count) const override {
    return static_cast<std::size_t>(place.rank) * count;
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.scatter(a.send, a.recv, a.count, a.type, a.place.root, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::Scatter()); }
