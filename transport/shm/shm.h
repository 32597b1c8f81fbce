// Ranks as processes of a host.
// How: windows and registered memory lie in the processes' arenas, which all have mapped. Plain memory is reached by
//   the kernel's cross-memory attach where that is allowed.
// Errors: make_window_in() gives memory_limit, when the arena has no room.
// Threads: as transport::Transport; the functions of windows by any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/shm/arena.h"
#include "transport/transport.h"

namespace tutti::transport {

/// A process, as others must know it to share memory with it.
struct ShmProcess {
  pid_t pid = 0;
  int pidfd = -1;  // readable once the process has ended; -1: not watched. Owned by the maker of this
  std::shared_ptr<ArenaMapping> arena;
};

/// Returns false if it is not watched. Cheap enough for every millisecond of a wait.
bool has_ended(const ShmProcess& process);

/// Memory of `bytes` for a window in this process's arena. When its communicator ends, peers may still be reading; so
/// the memory is released only when every rank has said that it has left, or has died (at the next window that is made
/// or retired). `processes`: of the communicator's ranks; null: on another host. `gone`: of these, if there are any.
std::size_t make_window_in(Arena& arena, std::size_t bytes, Status& status);
void retire_window(Arena& arena, std::size_t offset, std::vector<std::shared_ptr<const ShmProcess>> processes,
                   std::function<bool()> gone = nullptr);

class ShmTransport final : public Transport {
 public:
  /// `processes` by rank, null for those on other hosts, whose windows are null too; `offsets`: where each rank's
  /// window lies in its arena. The destructor retires this rank's window.
  ShmTransport(int rank, const WindowSizes& sizes, Arena& own, std::vector<std::shared_ptr<const ShmProcess>> processes,
               std::vector<std::size_t> offsets, bool cross_memory);
  ~ShmTransport() override;
  /// Keeps the memory of this rank's window until `gone` is true as well.
  void keep_until(std::function<bool()> gone) { gone_ = std::move(gone); }

  const Capabilities& capabilities() const override { return capabilities_; }
  const WindowSizes& sizes() const override { return sizes_; }
  void warm() override;
  const Window& window(int rank) const override { return windows_[static_cast<std::size_t>(rank)]; }
  Handle handle_of(const void* address, std::size_t bytes) const override;
  std::byte* reach(int rank, Handle handle) const override;
  bool alive(int rank) const override;
  Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) override;
  Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) override;

 private:
  int rank_;
  WindowSizes sizes_;
  Capabilities capabilities_;
  Arena& own_;
  std::vector<std::shared_ptr<const ShmProcess>> processes_;
  std::vector<std::size_t> offsets_;
  std::vector<Window> windows_;
  std::function<bool()> gone_;
};

}  // namespace tutti::transport
