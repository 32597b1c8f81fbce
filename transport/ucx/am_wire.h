// The implementation of UcxWire: memory, tickets and the mutex; its links are in links.h.
// Threads: any; the mutex serialises the calls, and no thread sleeps with it.
#pragma once

#ifdef TUTTI_HAS_UCX

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ucx/context.h"
#include "transport/ucx/links.h"
#include "transport/wire/attached.h"
#include "transport/wire/exposed.h"
#include "transport/wire/sources.h"
#include "transport/wire/wire.h"

namespace tutti::ucx {

using transport::Flush;
using transport::Region;
using transport::WireInfo;

class AmWire final : public transport::Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
  ~AmWire() override;

  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return context_->address(); }
  Status meet(const std::vector<std::string>& addresses) override;
  Result<std::string> expose(std::byte* base, std::size_t bytes) override;
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;
  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  void give_up() override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;
  std::string obstacle(int rank) override;

 private:
  AmWire(const WireJob& job, std::unique_ptr<Context> context);

  const WireJob job_;
  WireInfo info_;
  std::mutex mutex_;                  // all below
  transport::ExposedMemory exposed_;  // a registration is a ucp_mem_h
  transport::AttachedMemory attached_;
  transport::Sources sources_;
  bool has_failed_ = false;  // give_up()
  Links links_;
  std::unique_ptr<Context> context_;  // ends before the links: that calls back for what is still under way
};

}  // namespace tutti::ucx

#endif
