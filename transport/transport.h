// The contract between the executor and whatever moves bytes.
//
// One Transport object serves one rank in one communicator. It owns (or maps) a *window* of memory per rank:
//
//   Board     the rank's announcements: a ring of its last calls (which is also the flight recorder) and its failure
//   signals   one cell per (sender, lane, channel), in the receiver's window, written only by the sender
//   scratch   inbound slots, written by peers; two halves, used by alternate calls
//   published slots written by the owner and read by peers; two halves, used by alternate calls
//   mailboxes one per sender: a small queue of slots for send/recv
//
// On load/store links (threads, shared memory, CUDA peers) all of it is reached by pointer, and the executor does so
// itself. A rank on another host is *remote*: its window here is a shadow, and NetLinks carries over what is put and
// signalled.
//
// Threads: one thread at a time may use a Transport (the communicator sees to that).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "transport/window.h"

namespace tutti::transport {

/// The ways in which a rank reaches memory of its peers.
struct Capabilities {
  bool load_store = false;    // windows and registered memory of peers are reached by pointer
  bool any_pointer = false;   // so is every other address of a peer (threads of one process)
  bool cross_memory = false;  // read() and write() reach plain memory of a peer
};

class NetLinks;  // wire/net_links.h

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const Capabilities& capabilities() const = 0;
  virtual const WindowSizes& sizes() const = 0;
  /// Returns how much of this rank's memory it takes.
  virtual std::size_t memory() const { return sizes().bytes(); }
  /// Returns the window of `rank`, which may be this one. Valid as long as the transport.
  virtual const Window& window(int rank) const = 0;

  /// Takes the page faults of all scratch and published slots. A hint, called before large messages go through them for
  /// the first time.
  virtual void warm() {}

  /// Returns the links to remote ranks; null where there are none.
  virtual NetLinks* net_links() { return nullptr; }

  /// Returns how peers may reach [address, address + bytes).
  virtual Handle handle_of(const void* address, std::size_t bytes) const = 0;
  /// Returns the pointer behind a peer's handle, or null when only read() and write() reach it.
  /// REQUIRES, as for these: the rank is not remote.
  virtual std::byte* reach(int rank, Handle handle) const = 0;

  /// Returns false once the process of `rank` has ended. Cheap enough for every millisecond of a wait.
  virtual bool alive(int rank) const = 0;

  /// Cross-memory access to a peer's plain memory. REQUIRES: capabilities().cross_memory. Errors: system, peer_died.
  virtual Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) = 0;
  virtual Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace tutti::transport
