// The topology of a job on several hosts, from each host's own topology and the known figures of the network between
// them. All ranks build it from the same parts, so all plan from the same topology.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

/// The contribution of one host.
struct HostOfJob {
  Topology found;         // of this host alone
  std::string goes_by;    // words that name the NICs of its links to other hosts, in the order of its rails, as people
                          // read it: "tcp/eth0", "rxe0:1 gid 1 (10.9.0.1), rxe1:1"; those that it has no NIC for are
                          // passed over
  double gb_per_s = 0;    // of these NICs together; 0: not known
  double latency_us = 0;  // from a rank to one on another host; 0: not known
  std::string machine;    // words that hosts which are containers or namespaces of one machine have in common
};

/// Returns the indices of the NICs that `words` name, in the order of `words`.
std::vector<int> nics_named(const Host& host, const std::string& words);

/// Returns the topology in which host h is hosts[h] and rank r is on host `host_of_rank[r]`.
/// Ranks: rank r is on one of the cores that have the CPUs to which it is bound. If several ranks of the machine are
/// bound to the same cores, its place among them chooses the core. A rank is not bound if `cpus_of_rank` has no CPUs of
/// its host for it. Links: the k-th NIC that a host names is linked to switch k, so it is on rail k. A host that names
/// none is linked as a whole. A link has the network's bandwidth if it is known (measured, or given by its library),
/// else the port's, else kNetworkGbPerS. Errors: invalid_argument, naming the host that is not one, or the rank that is
/// on none.
Result<Topology> of_job(const std::vector<HostOfJob>& hosts, const std::vector<int>& host_of_rank,
                        const std::vector<CpuList>& cpus_of_rank = {});

/// Returns the topology of a communicator: of the ranks `members`, in that order. Hosts without members are left out,
/// and so are their links. Make its graph with RailShares::of_members(). REQUIRES: members are ranks of the job.
Topology of_members(const Topology& job, std::span<const int> members);

}  // namespace tutti::topology
