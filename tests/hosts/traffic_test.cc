// Bytes on the wire, counted by the kernel at each host's link: an all-reduce takes the textbook's 2 (h - 1) / h of the
// message each way, whatever the number of ranks on a host; broadcast, all_gather, reduce_scatter and all_to_all
// theirs.
#include "tests/hosts/traffic.h"

#include <cstddef>
#include <vector>

namespace tutti::testing::traffic_test {
namespace {

constexpr std::size_t kCount = 4 << 20;

void count_at_links(int count, int each, const Traffic& expected) {
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  SCOPED_TRACE(std::string(name_of(expected.collective)) + ", " + std::to_string(count) + " hosts x " +
               std::to_string(each));
  constexpr int kCalls = 4;
  Job job(hosts, each, [&](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(60s));
    const auto n = static_cast<std::size_t>(comm.size());
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
        case Collective::all_to_all: return comm.all_to_all(send.data(), recv.data(), part, kType, options);
        default: return comm.broadcast(send.data(), recv.data(), kCount, kType, 0, options);
      }
    };
    call();
    count_bytes(place, comm, expected, kCalls, call);
    const float right = reduces(expected.collective) ? static_cast<float>(n) : 1.0F;
    if (recv[part - 1] != right) place.give_up("wrong data");
  });
  ASSERT_TRUE(job.finish());
  expect_bytes(job, count, each, expected, kCalls, kCount * sizeof(float));
}

TEST(Traffic, AllReduce) {
  for (const int each : {1, 2}) {
    for (const int h : {2, 3, 4}) {
      const double bytes = 2.0 * (h - 1) / h;
      count_at_links(h, each, {Collective::all_reduce, bytes, bytes});
    }
  }
}

TEST(Traffic, ReduceScatterAndAllGather) {
  for (const int each : {1, 2}) {
    for (const int h : {2, 4}) {
      const double bytes = 1.0 * (h - 1) / h;
      count_at_links(h, each, {Collective::reduce_scatter, bytes, bytes});
      count_at_links(h, each, {Collective::all_gather, bytes, bytes});
    }
  }
}

TEST(Traffic, AllToAll) {
  for (const int each : {1, 2}) {
    for (const int h : {2, 3}) {
      // Each rank's blocks for the other hosts.
      const double bytes = 1.0 * each * (h - 1) / h;
      count_at_links(h, each, {Collective::all_to_all, bytes, bytes});
    }
  }
}

TEST(Traffic, BroadcastToOneOtherHost) {
  for (const int each : {1, 2}) count_at_links(2, each, {Collective::broadcast, 1.0, 0.0});
}

// Who passes it on is the algorithm's affair; it comes to each of them once.
TEST(Traffic, BroadcastToTwoOtherHosts) {
  for (const int each : {1, 2}) count_at_links(3, each, {Collective::broadcast, 0.0, 1.0, "rx_bytes"});
}

}  // namespace
}  // namespace tutti::testing::traffic_test
