#include "topology/discover.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/parse.h"
#include "topology/cpu_list.h"
#include "topology/discover_devices.h"
#include "topology/gpus.h"
#include "topology/text.h"

namespace tutti::topology {

namespace {

namespace fs = std::filesystem;

/// Returns the file's text; nothing if it cannot be read.
std::optional<std::string> text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::optional<std::int64_t> number_of(const std::string& path) {
  const std::optional<std::string> text = text_of(path);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end == text->data()) return std::nullopt;
  return number;
}

CpuList cpus_in(const std::string& path) {
  const std::optional<std::string> text = text_of(path);
  if (!text) return {};
  Result<CpuList> cpus = parse_cpus(*text);
  return cpus.ok() ? cpus.take() : CpuList{};
}

CpuList those_online(const CpuList& cpus, const CpuList& online) {
  CpuList both;
  std::set_intersection(cpus.begin(), cpus.end(), online.begin(), online.end(), std::back_inserter(both));
  return both;
}

/// Returns the value behind "key : value" of a /proc file, from its first line that has the key.
std::string field_of(const std::string& path, const std::string& key) {
  std::istringstream lines(text_of(path).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(key);
    const std::size_t colon = line.find(':');
    if (at == std::string::npos || colon == std::string::npos || at > colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::uint64_t memory_in(const std::string& meminfo) {
  std::uint64_t kib = 0;
  const std::string value = field_of(meminfo, "MemTotal");
  std::from_chars(value.data(), value.data() + value.size(), kib);
  return kib << 10;
}

std::vector<int> numbers_in(const std::string& path) {
  std::istringstream words(text_of(path).value_or(""));
  return {std::istream_iterator<int>(words), {}};
}

/// Maps the system's numbers to 0, 1, 2, ... in their order.
class Renumbering {
 public:
  explicit Renumbering(const std::set<std::int64_t>& numbers) {
    for (const std::int64_t number : numbers) index_.emplace(number, static_cast<int>(index_.size()));
  }
  int operator[](std::int64_t number) const { return index_.at(number); }

 private:
  std::map<std::int64_t, int> index_;
};

// Builds up a Host from /sys/devices/system.
class Discovery {
 public:
  explicit Discovery(const std::string& root)
      : root_(root), cpu_folder_(root + "/sys/devices/system/cpu"), node_folder_(root + "/sys/devices/system/node") {}

  Result<Host> host() {
    online_ = cpus_in(cpu_folder_ + "/online");
    if (online_.empty()) {
      const unsigned cpus = root_.empty() ? std::thread::hardware_concurrency() : 0;
      if (cpus == 0) return Status(Code::system, fmt::format("{}/online does not list the CPUs", cpu_folder_));
      for (unsigned cpu = 0; cpu < cpus; ++cpu) online_.push_back(static_cast<int>(cpu));
    }
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    host_.name = name;
    host_.cpu_model = field_of(root_ + "/proc/cpuinfo", "model name");
    find_numa_nodes();
    find_cores();
    find_caches();
    return std::move(host_);
  }

 private:
  std::string of_cpu(int cpu, const std::string& file) const {
    return fmt::format("{}/cpu{}/{}", cpu_folder_, cpu, file);
  }

  void find_numa_nodes() {
    // Numbers may be missing in the kernel's list; distances are in the order of the present ones.
    for (const int number : cpus_in(node_folder_ + "/online")) {
      const std::string folder = fmt::format("{}/node{}", node_folder_, number);
      for (const int cpu : cpus_in(folder + "/cpulist")) node_of_[cpu] = static_cast<int>(host_.numa_nodes.size());
      host_.numa_nodes.push_back({memory_in(folder + "/meminfo"), numbers_in(folder + "/distance")});
    }
    if (host_.numa_nodes.empty()) host_.numa_nodes.push_back({memory_in(root_ + "/proc/meminfo"), {10}});
    for (NumaNode& node : host_.numa_nodes) {
      if (node.distances.size() != host_.numa_nodes.size()) node.distances.clear();
    }
  }

  void find_cores() {
    std::map<int, std::int64_t> package_of;
    std::set<std::int64_t> packages;
    for (const int cpu : online_) {
      // Some virtual machines give -1 for unknown.
      package_of[cpu] = std::max<std::int64_t>(number_of(of_cpu(cpu, "topology/physical_package_id")).value_or(0), 0);
      packages.insert(package_of[cpu]);
    }
    const Renumbering package(packages);
    host_.packages = static_cast<int>(packages.size());
    std::set<int> seen;
    for (const int cpu : online_) {
      if (seen.contains(cpu)) continue;
      CpuList cpus = those_online(cpus_in(of_cpu(cpu, "topology/thread_siblings_list")), online_);
      const bool makes_sense = std::binary_search(cpus.begin(), cpus.end(), cpu) &&
                               std::none_of(cpus.begin(), cpus.end(), [&](int c) { return seen.contains(c); });
      if (!makes_sense) cpus = {cpu};
      seen.insert(cpus.begin(), cpus.end());
      const auto node = node_of_.find(cpu);
      host_.cores.push_back({package[package_of[cpu]], node == node_of_.end() ? 0 : node->second, std::move(cpus)});
    }
  }

  void find_caches() {
    std::map<int, std::set<int>> seen;  // by level
    for (const int cpu : online_) {
      for (int i = 0;; ++i) {
        const std::string folder = of_cpu(cpu, fmt::format("cache/index{}/", i));
        const std::optional<std::int64_t> level = number_of(folder + "level");
        if (!level) break;
        if (text_of(folder + "type").value_or("Instruction") == "Instruction" || *level < 1) continue;
        const Result<std::uint64_t> bytes = parse_bytes(text_of(folder + "size").value_or(""));
        CpuList cpus = those_online(cpus_in(folder + "shared_cpu_list"), online_);
        std::set<int>& known = seen[static_cast<int>(*level)];
        if (!bytes.ok() || cpus.empty() ||
            std::any_of(cpus.begin(), cpus.end(), [&](int c) { return known.contains(c); })) {
          continue;
        }
        known.insert(cpus.begin(), cpus.end());
        host_.caches.push_back({static_cast<int>(*level), bytes.value(), std::move(cpus)});
      }
    }
    std::stable_sort(host_.caches.begin(), host_.caches.end(),
                     [](const Cache& x, const Cache& y) { return x.level < y.level; });
  }

  const std::string root_;
  const std::string cpu_folder_;
  const std::string node_folder_;
  CpuList online_;
  std::map<int, int> node_of_;  // NUMA node of a CPU
  Host host_;
};

/// Returns the CPUs that a process may run on; empty if unknown.
std::set<int> affinity_of(pid_t process) {
  for (int most = 1024; most <= kMostCpus; most *= 2) {
    const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(static_cast<std::size_t>(most)), free_set);
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
    if (sched_getaffinity(process, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;  // the kernel's sets are larger
      return {};
    }
    std::set<int> cpus;
    for (int cpu = 0; cpu < most; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) cpus.insert(cpu);
    }
    return cpus;
  }
  return {};
}

/// Returns the limit of CPUs of the group of this folder; 0: no limit, or unknown.
double quota_in(const std::string& folder) {
  double quota = 0;
  double period = 0;
  std::istringstream words(text_of(folder + "/cpu.max").value_or(""));  // version 2: "150000 100000" or "max 100000"
  if (words >> quota >> period && quota > 0 && period > 0) return quota / period;
  quota = static_cast<double>(number_of(folder + "/cpu.cfs_quota_us").value_or(-1));  // version 1; -1: no limit
  period = static_cast<double>(number_of(folder + "/cpu.cfs_period_us").value_or(0));
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

Result<Host> discover_host(const std::string& root) { return Discovery(root).host(); }

Result<Topology> discover(const std::string& root) {
  Topology topology;
  TUTTI_ASSIGN(Host host, discover_host(root));
  add_devices(host, cpus_in(root + "/sys/devices/system/node/online"), root);
  add_virtual_nics(host, root);
  topology.hosts.push_back(std::move(host));
  return topology;
}

Result<Topology> read_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
  const std::optional<std::string> text = bytes > 0 && bytes <= kMostTextBytes ? text_of(path) : std::nullopt;
  if (!text) {
    return Status(Code::system,
                  fmt::format("{} is not a file of at most {} bytes that can be read", quote(path), kMostTextBytes));
  }
  Result<Topology> topology = parse(*text);
  if (!topology.ok()) return invalid_argument(fmt::format("{}: {}", path, topology.status().message()));
  return topology;
}

Result<Topology> topology_of_process() {
  const std::string& path = options::text(Option::topology);
  if (path.empty()) {
    TUTTI_ASSIGN(Topology topology, discover());
    if (const Result<Gpus> gpus = discover_gpus(); gpus.ok()) add_gpus(gpus.value(), 0, topology);
    return topology;
  }
  Result<Topology> topology = read_file(path);
  if (topology.ok()) return topology;
  return Status(topology.status().code(), "TUTTI_TOPOLOGY: " + topology.status().message());
}

CpuList bound_cpus() {
  const std::set<int> cpus = affinity_of(0);
  if (static_cast<long>(cpus.size()) >= sysconf(_SC_NPROCESSORS_ONLN)) return {};
  return {cpus.begin(), cpus.end()};
}

int numa_node_of_pci(const std::string& bus_id, const std::string& root) {
  std::string name = bus_id;  // the driver writes capitals, the kernel small letters
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return static_cast<int>(number_of(root + "/sys/bus/pci/devices/" + name + "/numa_node").value_or(-1));
}

double cpu_quota(const std::string& root) {
  double least = 0;
  std::istringstream lines(text_of(root + "/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b" (version 2) or "4:cpu,cpuacct:/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    // Every group above has its own limit. In a container the path may be the host's while the mount begins at the
    // container's group: then only the last of these folders exists.
    for (fs::path path = line.substr(second + 1); path.has_relative_path() || path == "/"; path = path.parent_path()) {
      for (const char* mount : {"", "/cpu", "/cpu,cpuacct", "/unified"}) {
        const double quota = quota_in(root + "/sys/fs/cgroup" + mount + path.string());
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
      }
      if (path == "/") break;
    }
  }
  return least;
}

int usable_cpus(std::span<const pid_t> processes, const std::string& root) {
  std::set<int> cpus;
  const pid_t self[] = {getpid()};
  for (const pid_t process : processes.empty() ? std::span<const pid_t>(self) : processes)
    cpus.merge(affinity_of(process));
  int usable = cpus.empty() ? static_cast<int>(std::thread::hardware_concurrency()) : static_cast<int>(cpus.size());
  if (const double quota = cpu_quota(root); quota > 0) usable = std::min(usable, static_cast<int>(quota));
  return std::max(usable, 1);
}

}  // namespace tutti::topology
