// A job whose ranks are threads of one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "collectives/job/job_context.h"
#include "transport/inproc/inproc.h"

namespace tutti {

/// Shared by all ranks (threads). Thread-safe.
class ThreadJob final : public JobContext {
 public:
  explicit ThreadJob(int members) : members_(members) {}

  /// Windows for the first communicator, whose ranks one thread makes; kept until drop_windows().
  Result<std::vector<std::uint64_t>> make_windows(int ranks, const transport::WindowSizes& sizes);
  void drop_windows() { first_.clear(); }

  std::string describe(int member) const override;
  Result<std::unique_ptr<transport::Transport>> connect(std::uint64_t comm_id, std::span<const int> members, int rank,
                                                        const NameOf& name_of, const transport::WindowSizes& sizes,
                                                        const Exchange& exchange) override;
  // Threads of one process do not die alone, and all share memory: there is no remote rank to hear from or to tell.
  void subscribe(std::uint64_t, std::vector<int>, OnFailure, Whereabouts) override {}
  void unsubscribe(std::uint64_t) override {}
  bool report_failure(std::uint64_t, Code, const std::string&) override { return false; }
  std::vector<int> host_of_member() const override;  // all on this one
  int local_members() const override { return members_; }
  int local_cpus() const override;
  int local_processes() const override { return 1; }

 private:
  const int members_;
  std::vector<transport::SharedWindow> first_;
  std::mutex mutex_;
  std::map<std::byte*, std::weak_ptr<std::byte>> windows_;  // guarded by mutex_; how ranks get at each other's windows
};

}  // namespace tutti
