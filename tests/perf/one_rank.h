// A communicator of one rank that copies, rightly or wrongly, and a benchmark of it.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator_interface.h"
#include "perf/driver/collective.h"

namespace tutti::perf {

class OneRank : public CommunicatorInterface {
 public:
  int wrong_bytes = 0;  // damaged at the end of every large enough result
  int calls = 0;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status run(const Call& call) override {
    if (call.collective == Collective::barrier) return {};
    const std::size_t bytes = call.count * size_of(call.type);
    if (call.send != call.recv) copy(call, bytes);
    if (call.type != DataType::f32) return {};  // the driver's own exchange of figures
    ++calls;
    for (int i = 1; i <= wrong_bytes; ++i) damage(call, bytes - static_cast<std::size_t>(4 * i) + 3);
    return {};
  }
  virtual void copy(const Call& call, std::size_t bytes) { std::memmove(call.recv, call.send, bytes); }
  virtual void damage(const Call& call, std::size_t byte) { static_cast<unsigned char*>(call.recv)[byte] ^= 0x55; }
  Status run_group(std::span<const Transfer>) override { return unsupported("no groups"); }
  Result<std::shared_ptr<PendingWork>> start(const Call&) override { return unsupported("no start"); }
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer>) override {
    return unsupported("no start");
  }
  Result<std::shared_ptr<CommunicatorInterface>> split(int, int, const std::string&) override {
    return unsupported("no split");
  }
  Result<std::shared_ptr<CommunicatorInterface>> shrink() override { return unsupported("no shrink"); }
  Status set_timeout(std::chrono::milliseconds) override { return {}; }
  void abort(const std::string&) override {}
  Status status() const override { return {}; }
  Explanation explain_last_call() const override { return {.algorithm = "copy"}; }
  MemoryReport memory() const override { return {}; }
  Traffic traffic() const override { return {}; }
  std::string flight_recorder_text() const override { return {}; }
  std::string flight_recorder_json() const override { return "[]"; }
};

class Whole final : public PerfCollective {
 public:
  const char* name() const override { return "all_reduce"; }
  bool reduces() const override { return true; }
  Elements elements(std::size_t total, int, std::size_t) const override { return {total, total, total}; }
  double bus_factor(int) const override { return 0.5; }
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

}  // namespace tutti::perf
