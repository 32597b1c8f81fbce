// A job whose ranks are processes of one host: a Bootstrap that watches over them, and their shared memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "collectives/fabric.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/acquaintance.h"

namespace tutti {

/// Shared by the communicators of one rank. Thread-safe, but for connect().
class ShmFabric final : public Fabric {
 public:
  /// A collective call of all ranks of the job.
  static Result<std::shared_ptr<ShmFabric>> create(std::unique_ptr<bootstrap::Bootstrap> bootstrap,
                                                   std::chrono::milliseconds deadline);
  ~ShmFabric() override;

  /// The exchange of the job's first communicator.
  Exchange bootstrap_exchange();

  std::string describe(int member) const override;
  Result<std::unique_ptr<transport::Transport>> connect(std::span<const int> members, int rank,
                                                        const transport::WindowSizes& sizes,
                                                        const Exchange& exchange) override;
  void subscribe(std::uint64_t scope, std::vector<int> members, OnFailure on_failure) override;
  void unsubscribe(std::uint64_t scope) override;
  // All members share the memory in which the failure was claimed: nobody is left to be told.
  void tell(std::uint64_t, Code, const std::string&) override {}
  std::vector<int> host_of_member() const override;  // all on this one
  int local_members() const override { return bootstrap_->size(); }
  int local_cpus() const override;

 private:
  ShmFabric(std::unique_ptr<bootstrap::Bootstrap> bootstrap, transport::Arena& arena,
            transport::Acquaintance acquaintance);
  void heard(const bootstrap::Failure& failure);

  struct Subscription {
    std::vector<int> members;
    OnFailure on_failure;
  };
  static void pass_on(const bootstrap::Failure& failure, const Subscription& to);

  const std::unique_ptr<bootstrap::Bootstrap> bootstrap_;
  transport::Arena& arena_;
  const transport::Acquaintance acquaintance_;
  std::mutex mutex_;
  std::map<std::uint64_t, Subscription> subscriptions_;  // guarded by mutex_
  std::vector<bootstrap::Failure> heard_;                // likewise; a later subscriber hears of them too
};

}  // namespace tutti
