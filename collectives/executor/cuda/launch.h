// The one argument of every walk_* kernel, for one call or several. Host and device include this.
// Limits: kMostCalls calls in one launch; all arguments have at most 4096 bytes.
#pragma once

#include <cstdint>

#include "collectives/executor/cuda/program.h"
#include "transport/device_window.h"

namespace tutti::executor::cuda {

/// Why a kernel gave up (DeviceVerdict::kind).
enum class Failure : std::uint64_t {
  none,
  mismatch,     // `peer` made another call: own and other are the first two that differ
  deadline,     // waited for `peer` longer than the limit
  aborted,      // the host said so
  unreachable,  // a handle of `peer` that is not mapped here
  message,      // `peer` sends another number or type of elements: own.count and .what, and other's
};

/// The part of a call that one kernel does where kernels must not wait for each other (segments.h). All blocks then
/// share the signals of lane 0, and the last block to end gives those of the segment.
struct Segment {
  bool on = false;      // false: the kernel does the whole call, and waits in it
  bool begins = false;  // announces the call
  bool ends = false;    // ends it
  std::int32_t round = 0;
  std::uint32_t first_step = 0;
  std::uint32_t end_step = 0;
};

struct LaunchCall {
  // Which one serves is found out in the call where there is more than one: ranks may differ in what they know.
  const Program* first = nullptr;
  const Program* if_plain = nullptr;     // when some rank's buffer is out of reach; null: first
  const Program* if_in_place = nullptr;  // when some rank is in place; null: no matter
  std::uint64_t input = 0;               // addresses
  std::uint64_t output = 0;
  std::uint64_t fingerprint = 0;
  transport::DeviceCall announcement;  // sequence and history are filled in by the kernel
};

/// The most calls of a group in one launch, one after another. Every launch carries room for all of them.
inline constexpr int kMostCalls = 16;

/// Constant over all replays of a graph; the numbers of the calls and all that follows from them are in the window.
struct LaunchArguments {
  const transport::DevicePeer* peers = nullptr;
  transport::DeviceHostWords* host = nullptr;
  transport::DeviceWindowSizes sizes;
  std::int32_t rank = 0;
  std::int32_t count = 1;  // of the calls
  Segment segment;         // of calls[0]
  LaunchCall calls[kMostCalls];
};
static_assert(sizeof(LaunchArguments) <= 4096, "what every GPU and driver takes as a kernel's parameters");

/// The flag of call `sequence` in flagged lines; never 0, which is what fresh memory has. It repeats itself after 2^32
/// - 1 calls, so lines are zeroed now and then (kCleanEvery).
constexpr std::uint32_t flag_of(std::uint64_t sequence) {
  return static_cast<std::uint32_t>(sequence % 0xFFFFFFFFULL) + 1;
}
inline constexpr std::uint64_t kCleanEvery = std::uint64_t{1} << 30;

}  // namespace tutti::executor::cuda
