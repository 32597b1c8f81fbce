#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

class Reduce final : public PerfCollective {
  const char* name() const override { return "reduce"; }
  bool reduces() const override { return true; }
  bool rooted() const override { return true; }
  Elements elements(std::size_t total, int, std::size_t) const override { return {total, total, total}; }
  double bus_factor(int) const override { return 1; }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    if (place.rank != place.root) return {};
    return {{.count = count, .source = Pattern::kReduced}};
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.reduce(a.send, a.recv, a.count, a.type, a.op, a.place.root, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::Reduce()); }
