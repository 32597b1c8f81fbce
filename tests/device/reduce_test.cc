// The device's reductions (reduce-inl.h) on the host against the scalar reference, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/host_block.h"
#include "tests/support/oracles/reduce_reference.h"

namespace tutti::executor::cuda::reduce_test {
namespace {

class TestBlock : public HostBlock {
 public:
  TestBlock() : HostBlock(kPlace) {}
  template <class Come>
  bool await_line(Come&&, std::uint8_t) {
    return false;  // what these tests read is there
  }

 private:
  static inline const HostPlace kPlace;
};

template <DataType kType>
bool reduce_as(ReduceOp op, const Pass& pass) {
  TestBlock block;
  return reduce_pass<kType>(block, op, pass);
}

bool reduce_by_device(DataType type, ReduceOp op, const Pass& pass) {
  switch (is_bitwise(op) ? DataType::u32 : type) {
    case DataType::i8: return reduce_as<DataType::i8>(op, pass);
    case DataType::u8: return reduce_as<DataType::u8>(op, pass);
    case DataType::i32: return reduce_as<DataType::i32>(op, pass);
    case DataType::u32: return reduce_as<DataType::u32>(op, pass);
    case DataType::i64: return reduce_as<DataType::i64>(op, pass);
    case DataType::u64: return reduce_as<DataType::u64>(op, pass);
    case DataType::f16: return reduce_as<DataType::f16>(op, pass);
    case DataType::bf16: return reduce_as<DataType::bf16>(op, pass);
    case DataType::f32: return reduce_as<DataType::f32>(op, pass);
    case DataType::f64: return reduce_as<DataType::f64>(op, pass);
    case DataType::f8e4m3: return reduce_as<DataType::f8e4m3>(op, pass);
    case DataType::f8e5m2: return reduce_as<DataType::f8e5m2>(op, pass);
  }
  return false;
}

// Bit patterns that matter to a type: all of 8 bits, the edges of wider ones and random ones.
std::vector<std::uint64_t> patterns(DataType type, std::minstd_rand& random) {
  const std::size_t size = size_of(type);
  std::vector<std::uint64_t> all;
  if (size == 1) {
    for (std::uint64_t i = 0; i < 256; ++i) all.push_back(i);
    return all;
  }
  const int bits = static_cast<int>(8 * size);
  const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  const int mantissa = type == DataType::f16 ? 10 : type == DataType::bf16 ? 7 : type == DataType::f32 ? 23 : 52;
  const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
  const std::uint64_t top = ((sign - 1) >> mantissa) << mantissa;  // infinity of floats
  const std::uint64_t one = (((sign - 1) >> mantissa) / 2) << mantissa;
  for (const std::uint64_t base :
       {std::uint64_t{0}, std::uint64_t{1} << mantissa, one, one + (std::uint64_t{1} << mantissa),
        top - (std::uint64_t{1} << mantissa), top, top + (std::uint64_t{1} << (mantissa - 1)), sign - 1, sign / 2}) {
    for (const std::int64_t off : {-2, -1, 0, 1, 2, 3}) {
      all.push_back((base + static_cast<std::uint64_t>(off)) & mask);
      all.push_back(((base + static_cast<std::uint64_t>(off)) ^ sign) & mask);
    }
  }
  std::uniform_int_distribution<std::uint64_t> any;
  for (int i = 0; i < 60; ++i) all.push_back(any(random) & mask);
  return all;
}

struct Division {
  double divide_by = 0;
  bool factors = false;
};

std::vector<Division> divisions(ReduceOp op) {
  if (op == ReduceOp::avg) return {{0}, {1}, {3}, {7}, {300}};
  if (op == ReduceOp::premul_sum) return {{0, true}};
  return {{0}};
}

constexpr double kFactors[] = {1.0, 0.5, -3.25, 1e300, std::numeric_limits<double>::quiet_NaN(), 1.0 / 3};

TEST(DeviceReduce, AllTypesOpsAndPatternsHaveTheBitsOfTheReference) {
  std::minstd_rand random(20);
  for (int t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const std::size_t size = size_of(type);
    const std::vector<std::uint64_t> values = patterns(type, random);
    // Every pair, and a third source in another order.
    const std::size_t count = values.size() * values.size();
    std::vector<std::vector<std::byte>> sources(3, std::vector<std::byte>(count * size));
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&sources[0][i * size], &values[i % values.size()], size);
      std::memcpy(&sources[1][i * size], &values[i / values.size()], size);
      std::memcpy(&sources[2][i * size], &values[(i * 7 + i / values.size()) % values.size()], size);
    }
    for (int o = 0; o < kReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (!applies(op, type)) continue;
      for (const Division& division : divisions(op)) {
        for (std::size_t n = 1; n <= 3; ++n) {
          double factors[3];
          for (std::size_t s = 0; s < n; ++s) factors[s] = kFactors[(s + n + static_cast<std::size_t>(t)) % 6];
          std::vector<std::byte> expected(count * size);
          std::vector<std::byte> got(count * size);
          Pass pass;
          pass.bytes = count * size;
          pass.divide_by = division.divide_by;
          pass.sources = static_cast<std::uint32_t>(n);
          pass.destinations = 1;
          std::vector<const void*> from;
          for (std::size_t s = 0; s < n; ++s) {
            from.push_back(sources[s].data());
            pass.entries[s] = {.address = reinterpret_cast<std::uint64_t>(sources[s].data()),
                               .factor = division.factors ? factors[s] : 1.0};
          }
          pass.entries[n] = {.address = reinterpret_cast<std::uint64_t>(got.data())};
          void* to = expected.data();
          reduce::reference::reduce({.type = type,
                                     .op = op,
                                     .divide_by = division.divide_by,
                                     .factors = division.factors ? factors : nullptr},
                                    {&to, 1}, from, count);
          ASSERT_TRUE(reduce_by_device(type, op, pass));
          for (std::size_t i = 0; i < count && expected != got; ++i) {
            ASSERT_EQ(std::memcmp(&expected[i * size], &got[i * size], size), 0)
                << name_of(type) << " " << name_of(op) << " of " << n << " sources, pair " << i % values.size() << ", "
                << i / values.size() << ", divided by " << division.divide_by;
          }
        }
      }
    }
  }
}

// Every alignment of sources and destinations, also below the element's, every length around the vectors' edges; what
// lies beside a destination is left alone.
TEST(DeviceReduce, AnyAlignmentAndLength) {
  std::minstd_rand random(21);
  for (int t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const std::size_t size = size_of(type);
    for (int turn = 0; turn < 300; ++turn) {
      const std::size_t bytes = random() % 200 / size * size;
      const std::size_t n = 1 + random() % 4;
      const std::size_t m = 1 + random() % 3;
      const bool in_place = random() % 4 == 0;
      std::vector<std::vector<std::byte>> memory(n + m, std::vector<std::byte>(256 + 32));
      for (auto& block : memory) {
        for (std::byte& b : block) b = static_cast<std::byte>(random() % 60);  // numbers of every type
      }
      auto expected = memory;
      Pass pass;
      pass.bytes = bytes;
      pass.sources = static_cast<std::uint32_t>(n);
      pass.destinations = static_cast<std::uint32_t>(m);
      std::vector<const void*> from;
      std::vector<void*> to;
      for (std::size_t i = 0; i < n + m; ++i) {
        // Destination 0 in place of source 0.
        const std::size_t block = in_place && i == n ? 0 : i;
        const std::size_t offset = in_place && i == n ? 0 : random() % 17;
        std::byte* at = memory[block].data() + offset;
        if (in_place && i == n) at = reinterpret_cast<std::byte*>(pass.entries[0].address);
        pass.entries[i].address = reinterpret_cast<std::uint64_t>(at);
        pass.entries[i].form = form_of(pass.entries[i].address);
        std::byte* there = expected[block].data() + (at - memory[block].data());
        if (i < n) {
          from.push_back(there);
        } else {
          to.push_back(there);
        }
      }
      reduce::reference::reduce({.type = type, .op = ReduceOp::sum}, to, from, bytes / size);
      ASSERT_TRUE(reduce_by_device(type, ReduceOp::sum, pass));
      ASSERT_EQ(memory, expected) << name_of(type) << ", turn " << turn << ", " << bytes << " bytes";
    }
  }
}

TEST(DeviceReduce, FlaggedLinesCarryTheSameBytes) {
  for (std::size_t bytes = 1; bytes < 100; ++bytes) {
    std::vector<std::byte> from(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i + 1);
    alignas(16) std::byte lines[256] = {};
    std::vector<std::byte> to(bytes + 1);
    Pass pass;
    pass.bytes = bytes;
    pass.flag = 77;
    pass.sources = pass.destinations = 1;
    pass.entries[0].address = reinterpret_cast<std::uint64_t>(from.data());
    pass.entries[0].form = form_of(pass.entries[0].address);
    pass.entries[1] = {.address = reinterpret_cast<std::uint64_t>(lines), .form = Form::flagged};
    TestBlock block;
    ASSERT_TRUE(copy_pass(block, pass));
    std::swap(pass.entries[0], pass.entries[1]);
    pass.entries[1].address = reinterpret_cast<std::uint64_t>(to.data());
    pass.entries[1].form = form_of(pass.entries[1].address);
    ASSERT_TRUE(copy_pass(block, pass));
    ASSERT_EQ(std::memcmp(from.data(), to.data(), bytes), 0) << bytes;
    ASSERT_EQ(to[bytes], std::byte{0});
    pass.flag = 78;  // of a call that has not come
    EXPECT_FALSE(copy_pass(block, pass));
  }
}

}  // namespace
}  // namespace tutti::executor::cuda::reduce_test
