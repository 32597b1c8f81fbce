// What a remote rank is sent in one inline put, of which it may find any part: torn in every way, it must not pass for
// whole.
#include "collectives/executor/net_record.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace tutti::executor::net_record_test {
namespace {

using transport::CallRecord;
using transport::ExpressCell;

/// An express cell, as bytes.
struct alignas(transport::kCacheLine) Cell {
  std::array<std::byte, transport::Wire::kMostInlineBytes> bytes{};
  ExpressCell& cell() { return *reinterpret_cast<ExpressCell*>(bytes.data()); }
  const CallRecord& record() { return net_record(cell()); }
};

Cell told(std::uint64_t call, std::size_t along) {
  CallRecord own;
  own.sequence = call;
  own.fingerprint = call * 0x9E3779B97F4A7C15ULL;
  own.input = 77;  // of no use there
  own.output = 78;
  own.count = 1000 + call;
  own.factor = 0.5;
  own.what = 4;
  Cell cell;
  for (std::size_t i = 0; i < along; ++i) net_payload(cell.cell())[i] = static_cast<std::byte>(call * 31 + i * 7 + 1);
  write_net_record(own, along, net_record(cell.cell()));
  return cell;
}

TEST(NetRecord, IsWholeWhenAllOfItHasCome) {
  for (const std::size_t along : {0u, 1u, 7u, 8u, 16u, 100u, static_cast<unsigned>(kMostAlong)}) {
    Cell cell = told(5, along);
    EXPECT_TRUE(is_complete(cell.record())) << along;
    EXPECT_EQ(cell.record().sequence, 5u);
    EXPECT_EQ(cell.record().count, 1005u);
    EXPECT_EQ(cell.record().input, 0u);
  }
}

TEST(NetRecord, IsNotWholeWithAnyByteOfTheOneBefore) {
  for (const std::size_t along : {0u, 13u, 64u, static_cast<unsigned>(kMostAlong)}) {
    Cell before = told(5, along);
    Cell now = told(5 + 64, along);
    for (std::size_t i = 0; i < kNetRecordBytes + along; ++i) {
      if (before.bytes[i] == now.bytes[i]) continue;
      Cell torn = now;
      torn.bytes[i] = before.bytes[i];
      EXPECT_FALSE(is_complete(torn.record())) << "byte " << i << ", " << along << " along";
    }
  }
}

/// Written in rising order, and in falling order, byte by byte.
TEST(NetRecord, IsNotWholeBeforeItsLastByte) {
  for (const std::size_t along : {0u, 16u, 200u}) {
    for (const bool rising : {true, false}) {
      Cell at = told(9, along);
      Cell next = told(9 + 64, along);
      const std::size_t bytes = kNetRecordBytes + along;
      for (std::size_t done = 0; done < bytes; ++done) {
        EXPECT_TRUE(at.bytes == next.bytes || !is_complete(at.record()) || at.record().sequence == 9u) << done;
        const std::size_t i = rising ? done : bytes - 1 - done;
        at.bytes[i] = next.bytes[i];
      }
      EXPECT_TRUE(is_complete(at.record()));
      EXPECT_EQ(at.record().sequence, 73u);
    }
  }
}

TEST(NetRecord, ASizeThatIsNoneIsNotWhole) {
  Cell cell = told(5, 8);
  net_record(cell.cell()).output = kMostAlong + 1;
  EXPECT_FALSE(is_complete(cell.record()));
  net_record(cell.cell()).output = ~std::uint64_t{0};
  EXPECT_FALSE(is_complete(cell.record()));
}

TEST(NetRecord, IsTakenIntoTheMirrorOnceItIsWholeAndOfThatCall) {
  CallRecord mirror;
  Cell cell = told(70, 40);
  copy_to_mirror(cell.cell(), 6, mirror);  // the same cell, 64 calls before
  EXPECT_EQ(mirror.sequence, 0u);

  cell.bytes[kNetRecordBytes + 20] ^= std::byte{1};
  copy_to_mirror(cell.cell(), 70, mirror);
  EXPECT_EQ(mirror.sequence, 0u);

  cell.bytes[kNetRecordBytes + 20] ^= std::byte{1};
  copy_to_mirror(cell.cell(), 70, mirror);
  EXPECT_EQ(mirror.sequence, 70u);
  EXPECT_EQ(mirror.count, 1070u);
  EXPECT_TRUE(is_complete(mirror));
}

TEST(NetRecord, DoesNotTakeTheMirrorBack) {
  CallRecord mirror;
  mirror.sequence = 70 + 256;  // the same place of the ring
  Cell cell = told(70, 40);
  copy_to_mirror(cell.cell(), 70, mirror);
  EXPECT_EQ(mirror.sequence, 326u);
}

}  // namespace
}  // namespace tutti::executor::net_record_test
