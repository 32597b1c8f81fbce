#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

class AllReduce final : public PerfCollective {
  const char* name() const override { return "all_reduce"; }
  bool reduces() const override { return true; }
  Elements elements(std::size_t total, int, std::size_t) const override { return {total, total, total}; }
  double bus_factor(int ranks) const override { return 2 * all_but_own(ranks); }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.rank}};
  }
  std::vector<Block> received(const Place&, std::size_t count) const override {
    return {{.count = count, .source = Pattern::kReduced}};
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.all_reduce(a.send, a.recv, a.count, a.type, a.op, a.options);
  }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::AllReduce()); }
