#include "collectives/job/thread_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "topology/discover.h"

namespace tutti {

std::string ThreadJob::describe(int /*member*/) const { return fmt::format("thread of pid {}", getpid()); }

Result<std::vector<std::uint64_t>> ThreadJob::make_windows(int ranks, const transport::WindowSizes& sizes) {
  std::vector<std::uint64_t> addresses;
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < ranks; ++rank) {
    transport::SharedWindow window = transport::make_shared_window(sizes);
    if (!window) {
      return Status(Code::memory_limit,
                    fmt::format("no memory for the {} x {} bytes of communication buffers of {} ranks", ranks,
                                sizes.bytes(), ranks));
    }
    addresses.push_back(reinterpret_cast<std::uint64_t>(window.get()));
    windows_[window.get()] = window;
    first_.push_back(std::move(window));
  }
  return addresses;
}

Result<std::unique_ptr<transport::Transport>> ThreadJob::connect(std::uint64_t /*comm_id*/,
                                                                 std::span<const int> members, int rank,
                                                                 const NameOf& name_of,
                                                                 const transport::WindowSizes& sizes,
                                                                 const Exchange& exchange) {
  const transport::SharedWindow mine = first_.empty() ? transport::make_shared_window(sizes) : nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(windows_, [](const auto& entry) { return entry.second.expired(); });
    if (mine) windows_[mine.get()] = mine;
  }
  TUTTI_ASSIGN(const std::vector<std::uint64_t> addresses, exchange({reinterpret_cast<std::uint64_t>(mine.get())}));
  std::vector<transport::SharedWindow> windows;
  const std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < members.size(); ++r) {
    const auto found = windows_.find(reinterpret_cast<std::byte*>(addresses[r]));
    transport::SharedWindow window = found == windows_.end() ? nullptr : found->second.lock();
    if (!window && addresses[r] != 0) {  // its exchange failed after it had sent its address
      return Status(Code::aborted,
                    fmt::format("{} has given up making this communicator", name_of(static_cast<int>(r))));
    }
    if (!window) {
      return Status(Code::memory_limit, fmt::format("{} could not make its {} bytes of communication buffers",
                                                    name_of(static_cast<int>(r)), sizes.bytes()));
    }
    windows.push_back(std::move(window));
  }
  return std::unique_ptr<transport::Transport>(
      std::make_unique<transport::InprocTransport>(rank, sizes, std::move(windows)));
}

std::vector<int> ThreadJob::host_of_member() const { return std::vector<int>(static_cast<std::size_t>(members_), 0); }

int ThreadJob::local_cpus() const { return topology::usable_cpus({}); }

}  // namespace tutti
