#include "transport/inproc/inproc.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tutti::transport {

SharedWindow make_shared_window(const WindowSizes& sizes) {
  // mmap, not malloc: zeroed without being touched, so that only what is used takes memory.
  const std::size_t bytes = sizes.bytes();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
}

InprocTransport::InprocTransport(int rank, const WindowSizes& sizes, std::vector<SharedWindow> windows)
    : sizes_(sizes), memory_(std::move(windows)) {
  TUTTI_CHECK_EQ(static_cast<int>(memory_.size()), sizes.ranks);
  TUTTI_CHECK_LT(rank, sizes.ranks);
  for (const SharedWindow& memory : memory_) windows_.push_back(window_at(memory.get(), sizes_));
}

const Capabilities& InprocTransport::capabilities() const {
  static const Capabilities capabilities{.load_store = true, .any_pointer = true, .cross_memory = false};
  return capabilities;
}

Handle InprocTransport::handle_of(const void* address, std::size_t /*bytes*/) const {
  return reinterpret_cast<Handle>(address);
}

std::byte* InprocTransport::reach(int /*rank*/, Handle handle) const { return reinterpret_cast<std::byte*>(handle); }

Status InprocTransport::read(int /*rank*/, Handle from, std::size_t offset, void* to, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const std::byte*>(from) + offset, bytes);
  return {};
}

Status InprocTransport::write(int /*rank*/, const void* from, Handle to, std::size_t offset, std::size_t bytes) {
  std::memcpy(reinterpret_cast<std::byte*>(to) + offset, from, bytes);
  return {};
}

}  // namespace tutti::transport
