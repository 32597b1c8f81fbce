// A network's NIC for tests: a wire that reaches device memory by the dmabuf that a fake driver hands out, and never
// by its address, at which the host would fault. The kernel carries the bytes (local_wire.h), between processes of this
// machine that count as hosts.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/transport/wire/local_wire.h"

namespace tutti::testing {

class NicWire final : public LocalWire {
 public:
  static Result<std::unique_ptr<Wire>> open(const transport::WireJob& job) {
    return std::unique_ptr<Wire>(std::make_unique<NicWire>(job));
  }
  explicit NicWire(const transport::WireJob& job) : LocalWire(job) { info_.to_devices = true; }
  ~NicWire() override {
    for (const auto& [base, exposed] : exposed_) ::munmap(exposed.alias, exposed.bytes);
  }

  Result<std::string> expose_device(std::byte* base, std::size_t bytes, const transport::Dmabuf& memory) override {
    void* alias = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor,
                         static_cast<off_t>(memory.offset));
    if (alias == MAP_FAILED) return system_error("NIC: cannot map a dmabuf", errno);
    const std::lock_guard lock(mutex_);
    exposed_[base] = {static_cast<std::byte*>(alias), bytes};
    return expose(static_cast<std::byte*>(alias), bytes);
  }
  void unexpose(std::byte* base) override {
    const std::lock_guard lock(mutex_);
    const auto found = exposed_.find(base);
    if (found == exposed_.end()) return;
    ::munmap(found->second.alias, found->second.bytes);
    exposed_.erase(found);
  }
  Status put(int rank, int lane, transport::Region to, std::size_t at, const void* from, std::size_t bytes,
             transport::Ticket& ticket) override {
    return LocalWire::put(rank, lane, to, at, reached(static_cast<const std::byte*>(from)), bytes, ticket);
  }

 private:
  struct Exposed {
    std::byte* alias = nullptr;
    std::size_t bytes = 0;
  };

  const std::byte* reached(const std::byte* from) {
    const std::lock_guard lock(mutex_);
    auto found = exposed_.upper_bound(const_cast<std::byte*>(from));
    if (found == exposed_.begin()) return from;
    --found;
    const auto at = static_cast<std::size_t>(from - found->first);
    return at < found->second.bytes ? found->second.alias + at : from;
  }

  std::mutex mutex_;
  std::map<std::byte*, Exposed> exposed_;  // guarded by mutex_
};

}  // namespace tutti::testing
