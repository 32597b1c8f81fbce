// The kind of memory behind a pointer. Needs no CUDA header, and without a driver only a load and a branch.
//
//   const device::MemoryKind kind = device::kind_of(pointer);
//   if (kind.on_device()) ...kind.device...
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"

namespace tutti::device {

enum class MemoryPlace { host, pinned, managed, device };

struct MemoryKind {
  MemoryPlace place = MemoryPlace::host;
  int device = -1;  // ordinal; -1 for plain host memory. For pinned and managed memory: whose context it belongs to

  /// A GPU's own memory, or memory that moves to it: kernels work on it.
  bool on_device() const { return place == MemoryPlace::device || place == MemoryPlace::managed; }
  friend bool operator==(const MemoryKind&, const MemoryKind&) = default;
};

/// "memory of GPU 0", "host memory", "pinned host memory", "managed memory".
std::string print(const MemoryKind& kind);

namespace internal {
enum class Presence : int { unknown, absent, present };
extern std::atomic<Presence> presence;
MemoryKind ask_kind_of(const void* pointer);
}  // namespace internal

/// Returns host memory for null and for pointers that the driver does not know. Threads: any.
inline MemoryKind kind_of(const void* pointer) {
  if (internal::presence.load(std::memory_order_relaxed) == internal::Presence::absent) return {};
  return internal::ask_kind_of(pointer);
}

/// The kinds of a call's two buffers.
inline bool any_on_device(const void* send, const void* recv) {
  return kind_of(send).on_device() || kind_of(recv).on_device();
}

/// Returns ok if device memory can be used, else the reason: "this build has no CUDA", or the error of driver().
Status available();

}  // namespace tutti::device
