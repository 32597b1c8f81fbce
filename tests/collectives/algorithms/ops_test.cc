// Every algorithm that adds up, with every op: among them avg, which divides once, and premultiplied sums, where each
// rank has its own factor. In f64 all of it is exact in any order.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/algorithms/table.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::ops_test {
namespace {

class Ops : public ::testing::TestWithParam<int> {};

TEST_P(Ops, EveryAlgorithmServesEveryOp) {
  Options options;
  options.memory_limit = std::size_t{1280} << 10;  // little scratch, so that the larger size takes many rounds
  expect_no_errors(run_threads(
      GetParam(),
      [](Communicator& comm) {
        for (const algorithms::Algorithm& algorithm : algorithms::table()) {
          const Collective collective = algorithm.collective;
          if (collective != Collective::all_reduce && collective != Collective::reduce_scatter &&
              collective != Collective::reduce) {
            continue;
          }
          for (int op = 0; op < kReduceOps; ++op) {
            for (const std::size_t count : {std::size_t{7}, std::size_t{9001}}) {
              for (const bool in_place : {false, true}) {
                Case c;
                c.collective = collective;
                c.algorithm = algorithm.name;
                c.count = count;
                c.op = static_cast<ReduceOp>(op);
                c.type = is_bitwise(c.op) ? DataType::i64 : DataType::f64;
                c.root = collective == Collective::reduce ? comm.size() - 1 : 0;
                c.in_place = in_place;
                check_case(comm, c);
              }
            }
          }
        }
      },
      options));
}

TEST(Bits, OfFloatsAreRefusedAndTheCommunicatorStillWorks) {
  for (const int ranks : {1, 2}) {
    expect_no_errors(run_threads(ranks, [](Communicator& comm) {
      const auto refused = [&](const std::function<void()>& call) {
        try {
          call();
        } catch (const Error& error) {
          MUST(error.code() == Code::invalid_argument);
          MUST(std::string(error.what()).find("bits are combined of integers only") != std::string::npos);
          return;
        }
        MUST(!"refused");
      };
      float value = 1;
      for (const ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}}) {
          refused([&] { comm.all_reduce(&value, &value, count, DataType::f32, op); });
          refused([&] { comm.reduce(&value, &value, count, DataType::bf16, op, 0); });
          refused([&] { comm.all_reduce_async(&value, &value, count, DataType::f8e4m3, op).wait(); });
        }
      }
      const std::int64_t mine = comm.rank() + 1;
      std::int64_t all = 0;
      comm.all_reduce(&mine, &all, 1, DataType::i64, ReduceOp::bor);
      MUST(all == (comm.size() == 1 ? 1 : 3));
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Ops, ::testing::Values(2, 3, 5, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace tutti::testing::ops_test
