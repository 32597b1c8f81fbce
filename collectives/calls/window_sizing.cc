#include "collectives/calls/window_sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>

#include "base/options.h"
#include "collectives/executor/host/plan_walker.h"
#include "collectives/reduce/reduce.h"
#include "topology/discover.h"
#include "transport/hosts/hosts.h"

namespace tutti {

namespace {

constexpr std::size_t kLeastScratch = std::size_t{64} << 10;
// Between hosts a round takes two latencies of the network, so it should move much more than fits into a cache.
constexpr std::size_t kRemoteScratch = 4;
// And a message of some KiB, which would wait for its receiver to have come to the call before, goes with its signal.
constexpr int kMostRanksRemoteExpress = 8;
constexpr std::size_t kRemoteExpressLines = 512;      // 32 KiB, of all senders together
constexpr std::size_t kLeastRemoteExpressLines = 64;  // of each, or the usual
constexpr std::size_t kMailboxes = std::size_t{2} << 20;
constexpr std::size_t kLeastMailbox = std::size_t{16} << 10, kMostMailbox = std::size_t{1} << 20;

}  // namespace

Result<transport::WindowSizes> window_sizes(int ranks, const Options& options, int most_remote) {
  const bool multi_host = most_remote > 0;
  transport::WindowSizes sizes;
  sizes.ranks = ranks;
  sizes.has_remote = multi_host;
  sizes.lanes = kLanes;
  // All mailboxes of a window together should leave the second-level cache before they are used again, as scratch does.
  sizes.mailbox = std::clamp(std::bit_floor(kMailboxes / static_cast<std::size_t>(ranks)), kLeastMailbox, kMostMailbox);
  std::size_t scratch = std::max(static_cast<std::size_t>(options::bytes(Option::scratch)), kLeastScratch);
  if (multi_host) scratch *= kRemoteScratch;
  if (multi_host && ranks <= kMostRanksRemoteExpress)
    sizes.express_lines = kRemoteExpressLines / static_cast<std::size_t>(ranks);
  std::size_t taken = 0;
  for (;; scratch /= 2,
          sizes.mailbox = std::max(sizes.mailbox / 2, kLeastMailbox),
          sizes.express_lines = sizes.express_lines > kLeastRemoteExpressLines ? kLeastRemoteExpressLines : 0) {
    sizes.scratch_half = round_up(scratch / 2, transport::kCacheLine);
    sizes.published_half = multi_host ? transport::kCacheLine : sizes.scratch_half;  // no remote rank reads it
    taken = (multi_host ? transport::exposed_bytes(sizes) : sizes.bytes()) + executor::PlanWalker::kBounceBytes;
    taken += static_cast<std::size_t>(most_remote) * transport::shadow_bytes(sizes);
    if (options.memory_limit == 0 || taken <= options.memory_limit) return sizes;
    if (scratch / 2 < kLeastScratch) break;
  }
  return Status(Code::memory_limit,
                fmt::format("a communicator of {} ranks takes at least {} bytes; memory_limit is {}", ranks, taken,
                            options.memory_limit));
}

int most_remote_ranks(const JobContext& job, const std::vector<int>& world_ranks) {
  const std::vector<int> hosts = job.host_of_member();
  std::map<int, int> ranks;  // by host
  for (const int world_rank : world_ranks) ++ranks[hosts[static_cast<std::size_t>(world_rank)]];
  int fewest = static_cast<int>(world_ranks.size());
  for (const auto& [host, count] : ranks) fewest = std::min(fewest, count);
  return static_cast<int>(world_ranks.size()) - fewest;
}

std::size_t streaming_above(int ranks_of_host) {
  static const Result<topology::Host> host = topology::discover_host();
  const std::uint64_t share = host.ok() ? topology::cache_share(host.value(), ranks_of_host) : 0;
  return std::max<std::size_t>(reduce::kLeastStreaming, share / 4);
}

std::size_t limit_of_messages(const transport::Transport& transport, const Options& options) {
  if (options.memory_limit == 0) return std::numeric_limits<std::size_t>::max();
  const std::size_t taken = transport.memory() + executor::PlanWalker::kBounceBytes;
  return options.memory_limit - std::min(taken, options.memory_limit);
}

}  // namespace tutti
