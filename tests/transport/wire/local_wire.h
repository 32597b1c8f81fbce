// The smallest wire: the kernel writes into the peers' memory (process_vm_writev), in order and at once. The suite of
// wires is tried on it.
#pragma once

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/wire/wire.h"

namespace tutti::testing {

class LocalWire : public transport::Wire {
 public:
  explicit LocalWire(const transport::WireJob& job)
      : job_(job), address_(std::to_string(::getpid())), broken_(job.hosts.size()) {
    info_ = {.name = "local", .devices = "memory", .copied = SIZE_MAX, .alpha_us = 1, .gb_per_s = 1};
  }

  /// Ok where the kernel lets this process write its own memory so; a sandbox may not.
  static bool allowed() {
    char from = 1, to = 0;
    return write(::getpid(), &from, 1, &to) == 0 && to == 1;
  }

  const transport::WireInfo& info() const override { return info_; }
  const std::string& address() const override { return address_; }
  Status meet(const std::vector<std::string>& addresses) override {
    for (const std::string& address : addresses) pids_.push_back(std::stoi(address));
    return {};
  }
  Result<std::string> expose(std::byte* base, std::size_t bytes) override {
    return fmt::format("{} {}", reinterpret_cast<std::uintptr_t>(base), bytes);
  }
  void unexpose(std::byte*) override {}
  Result<transport::Region> attach(int, std::string_view key, std::size_t bytes) override {
    const std::size_t space = std::min(key.find(' '), key.size());
    if (std::string(key.substr(space)) != fmt::format(" {}", bytes)) {
      return invalid_argument(fmt::format("'{}' is no key of {} bytes", key, bytes));
    }
    const std::lock_guard lock(mutex_);
    regions_.push_back(reinterpret_cast<std::byte*>(std::stoull(std::string(key))));
    return static_cast<transport::Region>(regions_.size() - 1);
  }
  void detach(transport::Region) override {}

  Status put(int rank, int, transport::Region to, std::size_t at, const void* from, std::size_t bytes,
             transport::Ticket& ticket) override {
    const std::lock_guard lock(mutex_);
    ticket = 0;
    return write_to(rank, from, bytes, regions_[to] + at);
  }
  Status signal(int rank, int, transport::Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                transport::Flush) override {
    const std::lock_guard lock(mutex_);
    TUTTI_TRY(write_to(rank, &tag, sizeof tag, regions_[to] + at + sizeof count));
    return write_to(rank, &count, sizeof count, regions_[to] + at);
  }
  bool completed(transport::Ticket) override { return true; }
  void release_source(transport::Ticket) override {}
  Status flush() override { return {}; }
  bool progress() override { return false; }
  void sleep(std::chrono::nanoseconds most) override {
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(most, std::chrono::milliseconds(1)));
  }
  Status broken(int rank) override {
    const std::lock_guard lock(mutex_);
    return broken_[static_cast<std::size_t>(rank)];
  }

 protected:
  transport::WireInfo info_;

 private:
  static int write(int pid, const void* from, std::size_t bytes, void* to) {
    const iovec source{const_cast<void*>(from), bytes};
    const iovec target{to, bytes};
    return ::process_vm_writev(pid, &source, 1, &target, 1, 0) == static_cast<ssize_t>(bytes) ? 0 : errno;
  }
  Status write_to(int rank, const void* from, std::size_t bytes, std::byte* to) {
    Status& broken = broken_[static_cast<std::size_t>(rank)];
    if (broken.ok()) {
      if (const int error = write(pids_[static_cast<std::size_t>(rank)], from, bytes, to); error != 0) {
        const std::string& name = job_.names[static_cast<std::size_t>(rank)];
        broken = error == ESRCH ? Status(Code::peer_died, name + " died") : system_error("writing to " + name, error);
      }
    }
    return broken;
  }

  const transport::WireJob job_;
  std::string address_;
  std::mutex mutex_;
  std::vector<int> pids_;
  std::vector<std::byte*> regions_{nullptr};  // region 0 is none
  std::vector<Status> broken_;
};

}  // namespace tutti::testing
