// What a rank tells a far one of a call: the first line of its record, which goes to the mirror of its board, or, with
// the data of an express call, into the express cell there. Either is one note (Wire::note), so a reader may find a
// part of it: a seal, made of all its words, says whether it is whole. (A torn one passes once in 2^64 times.)
//
// A record in an express cell has the number of bytes behind it in place of the output, which no far rank can reach.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "transport/wire.h"

namespace tutti::executor {

inline constexpr std::size_t kFarRecordBytes = transport::kCacheLine;
/// Data that goes along at most. More is put before.
inline constexpr std::size_t kMostAlong = transport::Wire::kMostNoteBytes - kFarRecordBytes;

inline transport::CallRecord& far_record(transport::ExpressCell& cell) {
  return reinterpret_cast<transport::CallRecord&>(cell);  // of which there is the first line only
}
inline std::byte* far_payload(transport::ExpressCell& cell) {
  return reinterpret_cast<std::byte*>(&cell) + kFarRecordBytes;
}

/// Writes the first line of `record` to `to`, and seals it together with `along` bytes that lie behind that line.
/// REQUIRES: along <= kMostAlong.
void seal_far(const transport::CallRecord& record, std::size_t along, transport::CallRecord& to);

/// Whether a record that has come from a far rank is whole, with what came along.
bool is_whole(const transport::CallRecord& record);

/// If the cell has a whole record of `call`: writes that to `mirror`, its place in the mirror of the sender's board,
/// where everybody looks, unless it was told there too.
void take_in(transport::ExpressCell& cell, std::uint64_t call, transport::CallRecord& mirror);

}  // namespace tutti::executor
