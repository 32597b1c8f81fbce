// One port of one RDMA device, opened: its protection domain, its completion queue, and memory that is registered with
// it.
//
// Registration. Memory is registered when its owner exposes it, until the owner unexposes it: a communicator's windows.
// Of other memory that of tutti's own allocation is (blocks.h): a block with the first larger put from it, until it
// ends. A cache of registrations by address for all memory would be wrong as soon as an address is unmapped and mapped
// again: the device goes on reading the old pages, and only a hook under malloc and munmap would tell. So any other
// source goes through bounce buffers: one copy.
//
// A device's memory (GPUDirect) is registered by the descriptor that its driver gives of it, under the addresses that
// it has there; nothing here reads or writes it.
//
// Threads: the owner serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/verbs/address.h"
#include "transport/verbs/devices.h"
#include "transport/verbs/library.h"
#include "transport/wire/wire.h"

namespace tutti::transport::verbs {

/// The ports of all devices of this machine, with their GIDs.
Result<std::vector<Port>> list_ports(const Library& verbs);

class Rail {
 public:
  /// `links`: how many queue pairs it will have. Errors: system, unsupported (so many do not fit).
  static Result<std::unique_ptr<Rail>> open(const Library& verbs, const Port& port, int gid, int links);
  ~Rail();
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  const Port& port() const { return port_; }
  int gid() const { return gid_; }
  std::string text() const { return describe(port_, gid_); }
  const Library& verbs() const { return verbs_; }
  std::uint32_t depth() const { return depth_; }
  /// Returns what peers must know of it.
  RailEnd end() const;
  ibv_pd* domain() const { return domain_; }
  ibv_cq* completions() const { return completions_; }

  /// Returns how much this process may lock in all; SIZE_MAX: no limit.
  static std::size_t lockable_bytes();
  /// Errors: memory_limit (with what to do), system.
  Result<ibv_mr*> register_memory(std::byte* base, std::size_t bytes, bool for_peers);
  /// For peers. Errors: unsupported (this library, the kernel or the NIC cannot), system.
  Result<ibv_mr*> register_device(std::byte* base, std::size_t bytes, const Dmabuf& memory);
  void deregister(ibv_mr* memory);

  /// Takes what has completed. Returns how much that was; below 0 if the device has failed.
  int poll(const std::function<void(const ibv_wc&)>& take);
  /// The next completion makes event_fd() readable.
  void arm();
  int event_fd() const { return channel_->fd; }
  /// Forgets what made it so.
  void drain_events();

 private:
  Rail(const Library& verbs, Port port, int gid) : verbs_(verbs), port_(std::move(port)), gid_(gid) {}
  Status start(int links);
  Status error(const std::string& call, int number) const;

  const Library& verbs_;
  const Port port_;
  const int gid_;
  std::uint32_t first_packet_ = 0;
  std::uint32_t depth_ = 0;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
};

/// The rails of a wire; constant once it is open.
struct Rails {
  std::vector<std::unique_ptr<Rail>> all;
  std::vector<std::size_t> used;  // those that have a link
};

}  // namespace tutti::transport::verbs
