// The contract between the executor and whatever moves bytes.
//
// One Transport object serves one rank in one communicator. It owns (or maps) a *window* of memory per rank:
//
//   Board     the rank's announcements: a ring of its last calls (which is also the flight recorder) and its failure
//   signals   one cell per (sender, lane, channel), in the receiver's window, written only by the sender
//   scratch   inbound slots, written by peers; two halves, used by alternate calls
//   published slots written by the owner and read by peers; two halves likewise
//   mailboxes one per sender: a small queue of slots for send/recv
//
// On load/store links (threads, shared memory, CUDA peers) all of it is reached by pointer, and the executor does so
// itself. Ranks on other hosts are *far*: their windows here are drafts, and FarLinks carries over what is put and
// signalled.
//
// Threads: one thread at a time may use a Transport (the communicator sees to that).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "transport/window.h"

namespace tutti::transport {

/// How a rank reaches memory of its peers.
struct Capabilities {
  bool load_store = false;    // windows and registered memory of peers are reached by pointer
  bool any_pointer = false;   // so is every other address of a peer (threads of one process)
  bool cross_memory = false;  // read() and write() reach plain memory of a peer
};

class FarLinks;  // far_links.h

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const Capabilities& capabilities() const = 0;
  virtual const WindowSizes& sizes() const = 0;
  /// What it takes of this rank's memory.
  virtual std::size_t memory() const { return sizes().bytes(); }
  /// The window of `rank` (own rank included). Valid as long as the transport.
  virtual const Window& window(int rank) const = 0;

  /// Makes all scratch and published slots present in this process, that is, takes its page faults. A hint; called
  /// before large messages go through them for the first time.
  virtual void warm() {}

  /// The links to ranks on other hosts; null where there are none.
  virtual FarLinks* far_links() { return nullptr; }

  /// How peers may reach [address, address + bytes).
  virtual Handle handle_of(const void* address, std::size_t bytes) const = 0;
  /// The pointer behind a peer's handle, or null when it can only be reached by read() and write(). REQUIRES, as these
  /// do: the rank is not far.
  virtual std::byte* reach(int rank, Handle handle) const = 0;

  /// False once the process of `rank` has ended. Cheap enough for every millisecond of a wait.
  virtual bool alive(int rank) const = 0;

  /// Cross-memory access to a peer's plain memory. REQUIRES: capabilities().cross_memory. Errors: system, peer_died.
  virtual Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) = 0;
  virtual Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace tutti::transport
