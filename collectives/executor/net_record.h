// The announcement of a call to a remote rank: the first line of the record. It goes to the mirror of the rank's board,
// or, with the data of an express call, into the express cell there. Either is one note (Wire::put_inline), so a reader
// may find a part of it: a checksum, made of all its words, shows whether it is whole. (A torn one passes once in 2^64
// times.)
//
// A record in an express cell has the number of bytes behind it in place of the output, which no remote rank can reach.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti::executor {

inline constexpr std::size_t kNetRecordBytes = transport::kCacheLine;
/// Data that goes along at most. More is put before.
inline constexpr std::size_t kMostAlong = transport::Wire::kMostInlineBytes - kNetRecordBytes;

inline transport::CallRecord& net_record(transport::ExpressCell& cell) {
  return reinterpret_cast<transport::CallRecord&>(cell);  // of which there is the first line only
}
inline std::byte* net_payload(transport::ExpressCell& cell) {
  return reinterpret_cast<std::byte*>(&cell) + kNetRecordBytes;
}

/// Writes the first line of `record` to `to`, and a checksum of it together with `along` bytes that lie behind that
/// line. REQUIRES: along <= kMostAlong.
void write_net_record(const transport::CallRecord& record, std::size_t along, transport::CallRecord& to);

/// Whether a record that has come from a remote rank is whole, with what came along.
bool is_complete(const transport::CallRecord& record);

/// If the cell has a whole record of `call`: writes that to `mirror`, its place in the mirror of the sender's board,
/// where readers look, unless the mirror has it already.
void copy_to_mirror(transport::ExpressCell& cell, std::uint64_t call, transport::CallRecord& mirror);

}  // namespace tutti::executor
