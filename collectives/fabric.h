// The members of a job and the ways between them: where a communicator, and every child that is split from it, gets its
// transport and hears of failures. One Fabric per rank of a job (InprocFabric, ShmFabric).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace tutti {

/// Gives everybody's value, by rank of the new communicator. A collective call among its ranks.
using Exchange = std::function<Result<std::vector<std::uint64_t>>(std::uint64_t mine)>;

/// Called with a failure that came from elsewhere; `member` is the one that died (Code::peer_died), or -1. Any thread.
using OnFailure = std::function<void(int member, Code code, const std::string& message)>;

class Fabric {
 public:
  /// What a rank that cannot go on gives to the exchange in place of its window.
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};

  virtual ~Fabric() = default;

  /// "host alpha, pid 4711".
  virtual std::string describe(int member) const = 0;

  /// The transport of rank `rank` among `members` (numbers in the job, by rank of the new communicator). Makes exactly
  /// one exchange, also when it fails, so that the others do not wait in vain.
  virtual Result<std::unique_ptr<transport::Transport>> connect(std::span<const int> members, int rank,
                                                                const transport::WindowSizes& sizes,
                                                                const Exchange& exchange) = 0;

  /// From now on failures of members, and of the communicator `scope` as told by others, go to on_failure.
  virtual void subscribe(std::uint64_t scope, std::vector<int> members, OnFailure on_failure) = 0;
  virtual void unsubscribe(std::uint64_t scope) = 0;
  /// Tells the members of `scope` that do not share memory with this one. Never blocks.
  virtual void tell(std::uint64_t scope, Code code, const std::string& message) = 0;

  /// The host of each member of the job: numbers that are equal on the same host.
  virtual std::vector<int> host_of_member() const = 0;

  /// Ranks of this job on this host, and CPUs that they have between them: more ranks than CPUs wait differently.
  virtual int local_members() const = 0;
  virtual int local_cpus() const = 0;
};

}  // namespace tutti
