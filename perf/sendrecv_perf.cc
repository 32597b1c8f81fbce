#include <cstddef>
#include <vector>

#include "perf/driver/collective.h"

namespace tutti::perf {
namespace {

/// Each rank sends to the next and receives from the one before. Out of place only: one buffer cannot be both.
class SendRecv final : public PerfCollective {
  const char* name() const override { return "send_recv"; }
  bool has_in_place() const override { return false; }
  Elements elements(std::size_t total, int, std::size_t) const override { return {total, total, total}; }
  double bus_factor(int) const override { return 1; }
  std::vector<Block> sent(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = place.rank}};
  }
  std::vector<Block> received(const Place& place, std::size_t count) const override {
    return {{.count = count, .source = before(place)}};
  }
  void run(Communicator& comm, const Arguments& a) const override {
    comm.group_start();
    comm.send(a.send, a.count, a.type, (a.place.rank + 1) % a.place.ranks, 0, a.options.stream);
    comm.recv(a.recv, a.count, a.type, before(a.place), 0, nullptr, a.options.stream);
    comm.group_end();
  }

  static int before(const Place& place) { return (place.rank + place.ranks - 1) % place.ranks; }
};

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::perf_main(argc, argv, tutti::perf::SendRecv()); }
