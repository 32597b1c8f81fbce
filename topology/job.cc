#include "topology/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <utility>

#include "base/index.h"

namespace tutti::topology {

namespace {

/// Returns the place of `name` in `text` as a word of its own: "eth1" not in "tcp/eth10". npos: none.
std::size_t place_of(const std::string& name, const std::string& text) {
  if (name.empty()) return std::string::npos;
  const auto is_part = [&](std::size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
  };
  for (std::size_t found = text.find(name); found != std::string::npos; found = text.find(name, found + 1)) {
    if ((found == 0 || !is_part(found - 1)) && !is_part(found + name.size())) return found;
  }
  return std::string::npos;
}

/// Returns the indices of the cores that have one of these CPUs; all cores if none has.
std::vector<int> cores_with(const CpuList& cpus, const Host& host) {
  std::vector<int> some;
  std::vector<int> all;
  for (int c = 0; c < static_cast<int>(host.cores.size()); ++c) {
    const CpuList& own = host.cores[at(c)].cpus;
    all.push_back(c);
    if (std::find_first_of(own.begin(), own.end(), cpus.begin(), cpus.end()) != own.end()) some.push_back(c);
  }
  return some.empty() ? all : some;
}

}  // namespace

std::vector<int> nics_named(const Host& host, const std::string& words) {
  std::vector<std::pair<std::size_t, int>> found;
  for (int d = 0; d < static_cast<int>(host.devices.size()); ++d) {
    const Device& device = host.devices[at(d)];
    const std::size_t place = std::min(place_of(device.name, words), place_of(device.rdma, words));
    if (device.kind == DeviceKind::nic && place != std::string::npos) found.emplace_back(place, d);
  }
  std::sort(found.begin(), found.end());
  std::vector<int> nics;
  for (const auto& [place, device] : found) nics.push_back(device);
  return nics;
}

Result<Topology> of_job(const std::vector<HostOfJob>& hosts, const std::vector<int>& host_of_rank,
                        const std::vector<CpuList>& cpus_of_rank) {
  std::map<std::string, int> parts;  // of each machine
  for (const HostOfJob& host : hosts) ++parts[host.machine];
  Topology job;
  for (int h = 0; h < static_cast<int>(hosts.size()); ++h) {
    const Topology& found = hosts[at(h)].found;
    if (found.hosts.size() != 1) {
      return invalid_argument(
          fmt::format("host {} of the job describes {} hosts; expected itself alone", h, found.hosts.size()));
    }
    job.hosts.push_back(found.hosts.front());
    job.hosts.back().machine = parts[hosts[at(h)].machine] > 1 ? hosts[at(h)].machine : "";
    for (Link link : found.links) {
      if (link.a.kind == PlaceKind::network || link.b.kind == PlaceKind::network) continue;
      link.a.host = link.b.host = h;
      job.links.push_back(link);
    }
  }
  for (int h = 0; h < static_cast<int>(hosts.size()) && hosts.size() > 1; ++h) {
    const std::vector<int> nics = nics_named(hosts[at(h)].found.hosts.front(), hosts[at(h)].goes_by);
    const int links = std::max(static_cast<int>(nics.size()), 1);
    const HostOfJob& host = hosts[at(h)];
    const double latency_us = host.latency_us > 0 ? host.latency_us / 2 : kNetworkLatencyUs;  // to the switch
    for (int k = 0; k < links; ++k) {
      if (k == static_cast<int>(job.switches.size())) job.switches.push_back({fmt::format("rail{}", k)});
      const Place end = nics.empty() ? Place{h, PlaceKind::host, 0} : Place{h, PlaceKind::device, nics[at(k)]};
      const double port = nics.empty() ? 0 : job.hosts[at(h)].devices[at(nics[at(k)])].gb_per_s;
      const double gb_per_s = host.gb_per_s > 0 ? host.gb_per_s / links : port > 0 ? port : kNetworkGbPerS;
      job.links.push_back({end, {0, PlaceKind::network, k}, gb_per_s, latency_us});
    }
  }
  // A host with fewer NICs than another reaches all of its by way of the first switch.
  for (int k = 1; k < static_cast<int>(job.switches.size()); ++k) {
    double gb_per_s = 0;
    for (const Link& link : job.links) gb_per_s += link.b == Place{0, PlaceKind::network, k} ? link.gb_per_s : 0;
    job.links.push_back({{0, PlaceKind::network, 0}, {0, PlaceKind::network, k}, gb_per_s, 0});
  }
  std::map<std::pair<int, std::vector<int>>, std::size_t> ranks;  // by machine and cores
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    const int h = host_of_rank[r];
    if (h < 0 || h >= static_cast<int>(hosts.size())) {
      return invalid_argument(fmt::format("rank {} is on host {}; the job has {}", r, h, hosts.size()));
    }
    const std::vector<int> cores = cores_with(r < cpus_of_rank.size() ? cpus_of_rank[r] : CpuList(), job.hosts[at(h)]);
    std::size_t& before = ranks[{on_machine(job, {h, PlaceKind::host, 0}).host, cores}];
    job.ranks.push_back({h, PlaceKind::core, cores.empty() ? 0 : cores[before++ % cores.size()]});
  }
  TUTTI_TRY(check(job));
  return job;
}

Topology of_members(const Topology& job, std::span<const int> members) {
  std::vector<int> number(job.hosts.size(), -1);
  for (const int member : members) number[at(job.ranks[at(member)].host)] = 0;
  Topology result;
  result.switches = job.switches;
  for (std::size_t h = 0; h < job.hosts.size(); ++h) {
    if (number[h] < 0) continue;
    number[h] = static_cast<int>(result.hosts.size());
    result.hosts.push_back(job.hosts[h]);
  }
  const auto stays = [&](const Place& place) {
    return place.kind == PlaceKind::network || number[at(place.host)] >= 0;
  };
  const auto moved = [&](Place place) {
    if (place.kind != PlaceKind::network) place.host = number[at(place.host)];
    return place;
  };
  for (const Link& link : job.links) {
    if (!stays(link.a) || !stays(link.b)) continue;
    result.links.push_back({moved(link.a), moved(link.b), link.gb_per_s, link.latency_us});
  }
  for (const int member : members) result.ranks.push_back(moved(job.ranks[at(member)]));
  return result;
}

}  // namespace tutti::topology
