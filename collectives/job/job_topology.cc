#include "collectives/job/job_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/boot_id.h"
#include "base/log.h"
#include "base/options.h"
#include "collectives/job/job_costs.h"
#include "collectives/job/stable_hash.h"
#include "topology/cpu_list.h"
#include "topology/discover.h"
#include "topology/job.h"
#include "topology/text.h"
#include "transport/bootstrap/agree.h"

namespace tutti {

namespace {

// The first letter of what a rank sends the others: what it has found, or that its file has the whole job in it.
constexpr char kFound = ' ';
constexpr char kPlaced = '#';

std::string name_of(const bootstrap::Bootstrap& bootstrap, std::size_t rank) {
  return bootstrap::name_of(static_cast<int>(rank), bootstrap.roster()[rank]);
}

/// The CPUs that this rank is bound to.
std::string own_line() { return topology::print_cpus(topology::bound_cpus()) + '\n'; }

/// Returns the part of a host's first rank: its CPUs, as all ranks give; the figures of its links to other hosts and
/// words that name its NICs (the wire's, or the interface by which it met the others); the machine that it is a part
/// of; and its topology. Or why it has none.
Result<std::string> own_part(const transport::WireInfo& wire, const std::string& interface) {
  const Result<topology::Topology> found = topology::topology_of_process();
  if (!found.ok()) return found.status();
  const double way_us = wire.alpha_us - 2 * share_of_ends(wire);
  const bool names_nics = !topology::nics_named(found.value().hosts.front(), wire.devices).empty();
  std::string words = fmt::format("{} {} {}", wire.gb_per_s, way_us, names_nics ? wire.devices : interface);
  std::replace(words.begin(), words.end(), '\n', ' ');
  return kFound + own_line() + words + '\n' + boot_id() + '\n' + topology::print(found.value());
}

/// The next line, which is taken from `text`.
std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

Result<topology::Topology> merged(const bootstrap::Bootstrap& bootstrap, const std::vector<std::string>& parts,
                                  const std::vector<int>& hosts) {
  std::vector<topology::HostOfJob> found;
  std::vector<topology::CpuList> cpus_of_rank;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    std::string_view part = parts[r];
    part.remove_prefix(std::min<std::size_t>(part.size(), 1));
    TUTTI_ASSIGN(cpus_of_rank.emplace_back(), topology::parse_cpus(take_line(part)));
    if (part.empty()) continue;
    topology::HostOfJob& host = found.emplace_back();
    host.goes_by = take_line(part);
    host.machine = take_line(part);
    Result<topology::Topology> one = topology::parse(part);
    if (!one.ok()) {
      return Status(one.status().code(),
                    fmt::format("the topology of {}: {}", name_of(bootstrap, r), one.status().message()));
    }
    host.found = one.take();
    // Not by a stream, which reads as the program's locale has it: 2.5 as 2 where a comma is what begins a fraction.
    const char* last = host.goes_by.data() + host.goes_by.size();
    const auto figure = std::from_chars(host.goes_by.data(), last, host.gb_per_s);
    (void)std::from_chars(std::min(figure.ptr + 1, last), last, host.latency_us);
  }
  return topology::of_job(found, hosts, cpus_of_rank);
}

/// Errors: mismatch, a file that says where ranks are has been given to some ranks and not to others.
Status check_placed(const bootstrap::Bootstrap& bootstrap, const std::vector<std::string>& parts) {
  const auto is_placed = [](const std::string& part) { return part.starts_with(kPlaced); };
  const auto other = std::find_if(parts.begin(), parts.end(),
                                  [&](const std::string& part) { return is_placed(part) != is_placed(parts[0]); });
  if (other == parts.end()) return {};
  const auto rank = static_cast<std::size_t>(other - parts.begin());
  const bool has = is_placed(*other);
  return Status(Code::mismatch, fmt::format("{} was {} a TUTTI_TOPOLOGY that says where ranks are, and rank 0 was{}; "
                                            "expected the same on all ranks",
                                            name_of(bootstrap, rank), has ? "given" : "not given", has ? " not" : ""));
}

/// All ranks: what the topology that `rank` has made differs in from that of rank 0. `mine` is empty where there is
/// none.
Status differ(bootstrap::Bootstrap& bootstrap, std::size_t rank, const std::string& mine) {
  const auto own = static_cast<std::size_t>(bootstrap.rank());
  TUTTI_ASSIGN(const std::vector<std::string> texts, bootstrap.all_gather(own == 0 || own == rank ? mine : ""));
  for (const std::size_t r : {std::size_t{0}, rank}) {
    if (texts[r].empty()) {
      return Status(Code::mismatch, fmt::format("{} has no topology of the job's hosts; its own error says why",
                                                name_of(bootstrap, r)));
    }
  }
  TUTTI_ASSIGN(const topology::Topology there, topology::parse(texts[rank]));
  TUTTI_ASSIGN(const topology::Topology first, topology::parse(texts[0]));
  return Status(Code::mismatch,
                fmt::format("{} has another topology of the job's hosts than rank 0: {}; expected the same "
                            "TUTTI_TOPOLOGY, and the same release, on all ranks",
                            name_of(bootstrap, rank), topology::first_difference(there, first)));
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
  Result<std::string> part = std::string();
  if (!job.ok()) {
    part = job.status();
  } else if (!by_hosts) {
    part = std::string(1, kPlaced);
  } else if (tells) {
    part = own_part(wire, bootstrap.roster()[own].interface);
  } else {
    part = kFound + own_line();
  }
  TUTTI_ASSIGN(const std::vector<std::string> parts, bootstrap::agree_all(bootstrap, part));
  TUTTI_TRY(check_placed(bootstrap, parts));
  // From here on a rank whose own error differs makes all exchanges nevertheless: the others wait for them.
  if (by_hosts) job = merged(bootstrap, parts, hosts);
  if (job.ok() && job.value().ranks.size() != hosts.size()) {
    job = Status(Code::invalid_argument,
                 fmt::format("TUTTI_TOPOLOGY: {} says where {} ranks are; the job has {}",
                             options::text(Option::topology), job.value().ranks.size(), hosts.size()));
  }
  const std::string text = job.ok() ? topology::print(job.value()) : std::string();
  const std::string mine = job.ok() ? fmt::format("{:016x}", stable_hash(text)) : std::string();
  TUTTI_ASSIGN(const std::vector<std::string> hashes, bootstrap.all_gather(mine));
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](const std::string& one) { return one != hashes[0]; });
  if (other == hashes.end()) return job;
  const Status found = differ(bootstrap, static_cast<std::size_t>(other - hashes.begin()), text);
  return job.ok() ? found : job.status();
}

}  // namespace tutti
