// Ranks as threads of one process: the smallest complete transport, and the template for the others.
// Windows are heap memory shared by all ranks; every pointer of a peer is reachable as it is.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace tutti::transport {

/// The zeroed memory of one rank's window; lives as long as any rank of the communicator. Null when there is none left.
using SharedWindow = std::shared_ptr<std::byte>;
SharedWindow make_shared_window(const WindowSizes& sizes);

class InprocTransport final : public Transport {
 public:
  /// `windows` has one entry per rank.
  InprocTransport(int rank, const WindowSizes& sizes, std::vector<SharedWindow> windows);

  const Capabilities& capabilities() const override;
  const WindowSizes& sizes() const override { return sizes_; }
  const Window& window(int rank) const override { return windows_[static_cast<std::size_t>(rank)]; }
  Handle handle_of(const void* address, std::size_t bytes) const override;
  std::byte* reach(int rank, Handle handle) const override;
  bool alive(int /*rank*/) const override { return true; }
  Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) override;
  Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) override;

 private:
  WindowSizes sizes_;
  std::vector<SharedWindow> memory_;
  std::vector<Window> windows_;
};

}  // namespace tutti::transport
