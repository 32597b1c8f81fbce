// The implementation of TcpWire: memory, tickets and the mutex; its links are in links.h.
// Threads: any; the mutex serialises the calls, and no thread sleeps with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/tcp/links.h"
#include "transport/wire/attached.h"
#include "transport/wire/sources.h"
#include "transport/wire/wire.h"

namespace tutti::tcp {

using transport::Flush;
using transport::Region;
using transport::Ticket;

class StreamWire final : public transport::Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
  ~StreamWire() override;

  const WireInfo& info() const override { return links_->info(); }
  const std::string& address() const override { return links_->address(); }
  Status meet(const std::vector<std::string>& addresses) override;
  Result<std::string> expose(std::byte* base, std::size_t bytes) override;
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;
  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  void redirect(const void* slot, std::size_t bytes, void* to) override;
  bool end_redirect(const void* slot) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  bool progress_for(int rank) override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;
  std::string obstacle(int rank) override;

 private:
  explicit StreamWire(const WireJob& job) : job_(job) {}

  const WireJob job_;
  std::mutex mutex_;  // all below
  ExposedMemory exposed_;
  Redirects redirects_;
  transport::AttachedMemory attached_;
  transport::Sources sources_;
  std::optional<Links> links_{std::in_place, job_, exposed_, redirects_, sources_};  // ends with the mutex held
};

}  // namespace tutti::tcp
