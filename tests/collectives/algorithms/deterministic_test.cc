// Deterministic mode is a contract: the same inputs give the same bits whatever the algorithm, the kind of memory, the
// transport, the size of scratch and the order in which the ranks were started.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::deterministic_test {
namespace {

constexpr Collective kSums[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce};
constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::f16, DataType::bf16, DataType::f8e5m2};
constexpr std::size_t kCounts[] = {1, 17, 5003};

/// Random finite numbers of very different size, so that every other order of adding would show: bits with an exponent
/// that is neither the largest (infinity) nor close enough to it for a sum of eight to overflow.
void write_random(DataType type, std::byte* at, std::size_t count, std::mt19937_64& random) {
  const int mantissa = type == DataType::f64    ? 52
                       : type == DataType::f32  ? 23
                       : type == DataType::f16  ? 10
                       : type == DataType::bf16 ? 7
                                                : 2;
  const int width = static_cast<int>(size_of(type)) * 8;
  const std::uint64_t bias = (std::uint64_t{1} << (width - mantissa - 2)) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t exponent = bias - 4 + random() % 9;  // 2^-4 to 2^4
    const std::uint64_t bits =
        (random() & ((std::uint64_t{1} << mantissa) - 1)) | exponent << mantissa | (random() & 1) << (width - 1);
    std::memcpy(at + i * size_of(type), &bits, size_of(type));
  }
}

std::uint64_t hash_of(std::uint64_t hash, const std::byte* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ std::to_integer<std::uint64_t>(at[i])) * 0x100000001B3ULL;
  return hash;
}

/// Runs every sum by every algorithm offered in the mode, with buffers of every kind; per (sum, type, op, count) all
/// must give one result on this rank. Returns the hash of all results.
std::string results(Communicator& comm) {
  std::uint64_t all = 0xCBF29CE484222325ULL;
  const auto n = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (const Collective collective : kSums) {
    for (const DataType type : kTypes) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul_sum}) {
        for (const std::size_t count : kCounts) {
          const std::size_t in_bytes = count * size_of(type) * (collective == Collective::reduce_scatter ? n : 1);
          const std::size_t out_bytes = count * size_of(type);
          const std::size_t own = collective == Collective::reduce_scatter ? rank * out_bytes : 0;
          std::vector<std::byte> input(in_bytes);
          std::mt19937_64 random(rank * 1000 + count);
          write_random(type, input.data(), in_bytes / size_of(type), random);
          std::set<std::uint64_t> seen;
          std::string runs;
          const int root = comm.size() - 1;
          for (const algorithms::Algorithm& algorithm : algorithms::table()) {
            if (algorithm.collective != collective || !algorithm.rank_order) continue;
            for (int variant = 0; variant < 4; ++variant) {
              Buffer<std::byte> registered(in_bytes + out_bytes);
              std::vector<std::byte> plain(in_bytes + out_bytes);
              std::byte* send = (variant & 1) != 0 ? registered.data() : plain.data();
              std::byte* recv = (variant & 2) != 0 ? send + own : send + in_bytes;
              std::memcpy(send, input.data(), in_bytes);
              const CallOptions options{
                  .deterministic = true, .factor = 0.3 + 0.1 * static_cast<double>(rank), .algorithm = algorithm.name};
              if (collective == Collective::all_reduce) comm.all_reduce(send, recv, count, type, op, options);
              if (collective == Collective::reduce_scatter) comm.reduce_scatter(send, recv, count, type, op, options);
              if (collective == Collective::reduce) comm.reduce(send, recv, count, type, op, root, options);
              if (collective == Collective::reduce && comm.rank() != root) continue;
              const std::uint64_t hash = hash_of(1, recv, out_bytes);
              seen.insert(hash);
              runs += fmt::format(" {}.{}={:x}", algorithm.name, variant, hash);
              all = variant == 0 ? hash_of(all, recv, out_bytes) : all;
            }
          }
          if (seen.size() > 1) {
            throw std::runtime_error(fmt::format("{} {} {} x {} differs between algorithms or buffers:{}",
                                                 name_of(collective), name_of(op), count, name_of(type), runs));
          }
        }
      }
    }
  }
  return fmt::format("{:x}", all);
}

std::vector<std::string> of_processes(int ranks, const Environment& environment, const std::vector<int>& order = {}) {
  std::vector<std::string> said;
  for (const Outcome& outcome : run_processes(ranks, results, environment, order)) {
    EXPECT_EQ(outcome.error, "");
    said.push_back(outcome.said);
  }
  return said;
}

std::vector<std::string> of_threads(int ranks) {
  const Outcome outcome = in_child([ranks] {
    std::vector<std::string> said(static_cast<std::size_t>(ranks));
    const auto errors =
        run_threads(ranks, [&](Communicator& comm) { said[static_cast<std::size_t>(comm.rank())] = results(comm); });
    std::string all;
    for (const std::string& error : errors) {
      if (!error.empty()) throw std::runtime_error(error);
    }
    for (const std::string& one : said) all += one + "\n";
    return all;
  });
  EXPECT_EQ(outcome.error, "");
  std::vector<std::string> said;
  for (std::size_t at = 0, end; (end = outcome.said.find('\n', at)) != std::string::npos; at = end + 1) {
    said.push_back(outcome.said.substr(at, end - at));
  }
  return said;
}

class Deterministic : public ::testing::TestWithParam<int> {};

TEST_P(Deterministic, SameBitsEverywhere) {
  const int ranks = GetParam();
  const std::vector<std::string> wanted = of_threads(ranks);
  ASSERT_EQ(wanted.size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(of_processes(ranks, {}), wanted);
  std::vector<int> backwards(static_cast<std::size_t>(ranks));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  EXPECT_EQ(of_processes(ranks, {{"TUTTI_CROSS_MEMORY", "off"}, {"TUTTI_SCRATCH", "64K"}}, backwards), wanted);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deterministic, ::testing::Values(2, 3, 5, 8),
                         [](const auto& info) { return std::to_string(info.param); });

// The inputs above must be able to show a difference: an algorithm that adds in another order does.
TEST(DeterministicInputs, AnotherOrderGivesOtherBits) {
  const Outcome outcome = in_child([] {
    std::vector<std::string> said(4);
    const auto errors = run_threads(4, [&](Communicator& comm) {
      std::set<std::uint64_t> seen;
      for (const char* algorithm : {"two_shot", "ring"}) {
        std::vector<float> data(5003);
        std::mt19937_64 random(static_cast<std::uint64_t>(comm.rank()) * 1000 + 5003);
        write_random(DataType::f32, reinterpret_cast<std::byte*>(data.data()), data.size(), random);
        comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32, ReduceOp::sum, {.algorithm = algorithm});
        seen.insert(hash_of(1, reinterpret_cast<const std::byte*>(data.data()), data.size() * sizeof(float)));
      }
      if (seen.size() != 2) throw std::runtime_error("ring and two_shot give the same bits");
    });
    for (const std::string& error : errors) {
      if (!error.empty()) throw std::runtime_error(error);
    }
    return std::string();
  });
  EXPECT_EQ(outcome.error, "");
}

TEST(DeterministicMode, RefusesAlgorithmsThatAddInAnotherOrder) {
  const Outcome outcome = in_child([] {
    const auto errors = run_threads(2, [](Communicator& comm) {
      float x = 1;
      comm.all_reduce(&x, &x, 1, DataType::f32, ReduceOp::sum, {.deterministic = true, .algorithm = "ring"});
    });
    return errors[0];
  });
  EXPECT_NE(outcome.said.find("does not add in rank order"), std::string::npos) << outcome.said << outcome.error;
}

}  // namespace
}  // namespace tutti::testing::deterministic_test
