#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

class Broadcast final : public PerfCollective {
  const char* name() const override { return "broadcast"; }
  bool rooted() const override { return true; }
  Elements elements(std::size_t total, int, std::size_t) const override { return {total, total, total}; }
  double bus_factor(int) const override { return 1; }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.root}};
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.broadcast(a.send, a.recv, a.count, a.type, a.place.root, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::Broadcast()); }
