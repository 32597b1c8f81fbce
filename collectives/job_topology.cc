#include "collectives/job_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "base/log.h"
#include "base/options.h"
#include "collectives/job_table.h"
#include "topology/discover.h"
#include "topology/job.h"
#include "topology/text.h"

namespace tutti {

namespace {

// What the first rank of a host says: a line with the figures of its links to other hosts and words that name its NICs,
// and its topology; or why it has none.
constexpr char kFailed = '!';
constexpr char kFound = ' ';

std::string name_of(const bootstrap::Bootstrap& bootstrap, std::size_t rank) {
  return bootstrap::name_of(static_cast<int>(rank), bootstrap.roster()[rank]);
}

std::string own_part(const transport::WireInfo& wire, const std::string& interface) {
  const Result<topology::Topology> found = topology::topology_of_process();
  if (!found.ok()) return kFailed + found.status().message();
  const double way_us = wire.alpha_us - 2 * share_of_ends(wire);
  std::string words = fmt::format("{} {} {} {}", wire.gb_per_s, way_us, wire.devices, interface);
  std::replace(words.begin(), words.end(), '\n', ' ');
  return kFound + words + '\n' + topology::print(found.value());
}

Result<topology::Topology> merged(const bootstrap::Bootstrap& bootstrap, const std::vector<std::string>& parts,
                                  const std::vector<int>& hosts) {
  std::vector<topology::HostOfJob> found;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::string& part = parts[r];
    if (part.empty()) continue;
    if (part.front() == kFailed) return Status(Code::system, name_of(bootstrap, r) + ": " + part.substr(1));
    const std::size_t end = std::min(part.find('\n'), part.size() - 1);
    Result<topology::Topology> one = topology::parse(std::string_view(part).substr(end + 1));
    if (!one.ok()) {
      return Status(one.status().code(),
                    fmt::format("the topology of {}: {}", name_of(bootstrap, r), one.status().message()));
    }
    topology::HostOfJob& host = found.emplace_back();
    host.found = one.take();
    host.goes_by = part.substr(1, end - 1);
    // Not by a stream, which reads as the program's locale has it: 2.5 as 2 where a comma is what begins a fraction.
    const char* last = host.goes_by.data() + host.goes_by.size();
    const auto figure = std::from_chars(host.goes_by.data(), last, host.gb_per_s);
    (void)std::from_chars(std::min(figure.ptr + 1, last), last, host.latency_us);
  }
  return topology::of_job(found, hosts);
}

}  // namespace

Result<topology::Topology> exchange_topology(bootstrap::Bootstrap& bootstrap, const std::vector<int>& hosts,
                                             const transport::WireInfo& wire) {
  const auto own = static_cast<std::size_t>(bootstrap.rank());
  const auto first = std::find(hosts.begin(), hosts.end(), hosts[own]);
  const bool tells = first == hosts.begin() + bootstrap.rank();
  const bool from_file = !options::text(Option::topology).empty();
  Result<topology::Topology> job = topology::Topology();
  if (from_file) job = topology::topology_of_process();
  const bool by_hosts = job.ok() && job.value().ranks.empty();
  if (by_hosts && from_file && own == 0) {
    log::info("TUTTI_TOPOLOGY: {} does not say where ranks are; it is taken for that of each host of the job",
              options::text(Option::topology));
  }
  // Everybody makes both exchanges, come what may: the others wait for them.
  TUTTI_ASSIGN(const std::vector<std::string> parts,
               bootstrap.all_gather(tells && (by_hosts || !job.ok()) ? own_part(wire, bootstrap.roster()[own].interface)
                                                                     : std::string()));
  if (by_hosts) job = merged(bootstrap, parts, hosts);
  if (job.ok() && job.value().ranks.size() != hosts.size()) {
    job = Status(Code::invalid_argument,
                 fmt::format("TUTTI_TOPOLOGY: {} says where {} ranks are; the job has {}",
                             options::text(Option::topology), job.value().ranks.size(), hosts.size()));
  }
  const std::string mine =
      job.ok() ? fmt::format("{:016x}", std::hash<std::string>{}(topology::print(job.value()))) : std::string();
  TUTTI_ASSIGN(const std::vector<std::string> hashes, bootstrap.all_gather(mine));
  TUTTI_TRY(job.status());
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](const std::string& one) { return one != hashes[0]; });
  if (other == hashes.end()) return job;
  const auto rank = static_cast<std::size_t>(other - hashes.begin());
  return Status(Code::mismatch,
                fmt::format("{} has made another topology of the job's hosts than rank 0 ({} and {}); are all ranks of "
                            "the same release, with the same TUTTI_TOPOLOGY?",
                            name_of(bootstrap, rank), hashes[rank].empty() ? "none" : hashes[rank],
                            hashes[0].empty() ? "none" : hashes[0]));
}

}  // namespace tutti
