// Bytes on the wire, counted by the kernel at each host's link: an all-reduce takes the textbook's 2 (h - 1) / h of the
// message each way, whatever the number of ranks on a host; broadcast, all_gather and reduce_scatter theirs.
#include "tests/hosts/traffic.h"

namespace tutti::testing {
namespace {

constexpr std::size_t kCount = 4 << 20;

void count_bytes(int count, int each, const Traffic& expected) {
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  SCOPED_TRACE(std::string(name_of(expected.collective)) + ", " + std::to_string(count) + " hosts x " +
               std::to_string(each));
  constexpr int kCalls = 4;
  Job job(hosts, each, [&](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(60s));
    const auto n = static_cast<std::size_t>(comm.size());
    const bool gathers = expected.collective == Collective::all_gather;
    const std::size_t part = kCount / n;
    std::vector<float> send(kCount, 1.0F), recv(kCount);
    CallOptions options;
    if (each > 1) options.algorithm = "hierarchical";
    const auto call = [&] {
      constexpr DataType kType = DataType::f32;
      constexpr ReduceOp kSum = ReduceOp::sum;
      switch (expected.collective) {
        case Collective::all_reduce: return comm.all_reduce(send.data(), recv.data(), kCount, kType, kSum, options);
        case Collective::reduce_scatter:
          return comm.reduce_scatter(send.data(), recv.data(), part, kType, kSum, options);
        case Collective::all_gather: return comm.all_gather(send.data(), recv.data(), part, kType, options);
        default: return comm.broadcast(send.data(), recv.data(), kCount, kType, 0, options);
      }
    };
    call();
    count_sent(place, comm, kCalls, call);
    if (gathers && recv[kCount / 2] != 1.0F) place.give_up("wrong data");
  });
  ASSERT_TRUE(job.finish());
  expect_sent(job, count, each, expected, kCalls, kCount * sizeof(float));
}

TEST(Traffic, AllReduce) {
  for (const int each : {1, 2}) {
    for (const int h : {2, 3, 4}) {
      const double bytes = 2.0 * (h - 1) / h;
      count_bytes(h, each, {Collective::all_reduce, bytes, bytes});
    }
  }
}

TEST(Traffic, ReduceScatterAndAllGather) {
  for (const int each : {1, 2}) {
    for (const int h : {2, 4}) {
      const double bytes = 1.0 * (h - 1) / h;
      count_bytes(h, each, {Collective::reduce_scatter, bytes, bytes});
      count_bytes(h, each, {Collective::all_gather, bytes, bytes});
    }
  }
}

TEST(Traffic, BroadcastToOneOtherHost) {
  for (const int each : {1, 2}) count_bytes(2, each, {Collective::broadcast, 1.0, 0.0});
}

}  // namespace
}  // namespace tutti::testing
