// The implementation of VerbsWire: its links (links.h) and its memory (memory.h) behind one mutex.
//
// Threads: any; the mutex serialises all calls, and no thread sleeps with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/verbs/library.h"
#include "transport/verbs/links.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/rail.h"
#include "transport/wire/wire.h"

namespace tutti::transport::verbs {

class RcWire final : public Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job, const std::string& devices);
  ~RcWire() override;

  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return address_; }
  Status meet(const std::vector<std::string>& addresses) override;

  Result<std::string> expose(std::byte* base, std::size_t bytes) override { return expose(base, bytes, nullptr); }
  Result<std::string> expose_device(std::byte* base, std::size_t bytes, const Dmabuf& memory) override {
    return expose(base, bytes, &memory);
  }
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;

  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  Status put_inline(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                    Flush flush) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;

 private:
  RcWire(const Library& verbs, const WireJob& job) : verbs_(verbs), job_(job) {}
  Status start(const std::string& devices);
  Result<std::string> expose(std::byte* base, std::size_t bytes, const Dmabuf* device);
  Result<RemoteBuffer> place_of(int rank, int lane, Region region, std::size_t at, std::size_t bytes) {
    return memory_.place_of(rank, links_.peer(rank).theirs, lane, region, at, bytes);
  }

  static constexpr int kTicketBits = 44;  // what the link calls the source; above: the link
  static std::uint64_t number_of(Ticket ticket) { return ticket & ((std::uint64_t{1} << kTicketBits) - 1); }

  const Library& verbs_;
  const WireJob job_;
  WireInfo info_;
  std::string address_;
  Rails rails_;

  std::mutex mutex_;  // guards what follows
  Memory memory_{job_, rails_};
  Links links_{job_, rails_};
  std::uint64_t polls_ = 0;
};

}  // namespace tutti::transport::verbs
