// The topology of a job on several hosts, from what each of them has found of itself and what is known of the network
// between them. All ranks make it from the same parts, so that they plan from the same.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

/// The part of one host.
struct HostOfJob {
  Topology found;         // of this host alone
  std::string goes_by;    // words that name the NICs of its links to other hosts, in the order of its rails, as people
                          // read it: "tcp/eth0", "rxe0:1 gid 1 (10.9.0.1), rxe1:1"; those that it has no NIC for are
                          // passed over
  double gb_per_s = 0;    // of these NICs together; 0: not known
  double latency_us = 0;  // from a rank to one on another host; 0: not known
  std::string machine;    // words that hosts which are containers or namespaces of one machine have in common
};

/// Indices of the NICs that `words` name, in their order there.
std::vector<int> nics_named(const Host& host, const std::string& words);

/// Host h is hosts[h]; rank r is on one of the cores of host `host_of_rank[r]` that the CPUs are of which it is bound
/// to; of those on the one that its place among the ranks of that machine says which are bound to the same. Where
/// `cpus_of_rank` has none for a rank, or none of the host's, it is not bound. The NICs that a host names are linked,
/// the k-th of each to switch k, so a host's k-th NIC is on rail k; a host that names none is linked as a whole. A link
/// has the bandwidth that is known of the network (measured, or said by the library that serves it), else that of the
/// port, else kNetworkGbPerS. Errors: invalid_argument, naming the host that is not one, or the rank that is on none.
Result<Topology> of_job(const std::vector<HostOfJob>& hosts, const std::vector<int>& host_of_rank,
                        const std::vector<CpuList>& cpus_of_rank = {});

/// Returns the topology of some of its ranks, in that order, from which a communicator of these plans. Hosts that have
/// none of them go, and so do their links. Its graph is to be made with RailShares::of_members(). REQUIRES: members are
/// ranks of the job.
Topology of_members(const Topology& job, std::span<const int> members);

}  // namespace tutti::topology
