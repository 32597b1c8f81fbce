#include "transport/bootstrap/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/parse.h"
#include "launch/launcher.h"
#include "transport/sockets/interfaces.h"

namespace tutti::bootstrap {
namespace {

constexpr int kFirstDerivedPort = 10'000;  // up to 29'999: below the ports that the kernel gives out itself
constexpr int kDerivedPorts = 20'000;

class Variables {
 public:
  explicit Variables(const LaunchEnvironment& launch_environment) : variables_(launch_environment.variables) {}

  bool has(const char* name) const { return !text(name).empty(); }
  std::string text(const char* name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::string() : found->second;
  }
  Result<int> number(const char* name, int least, int most) const {
    const Result<std::int64_t> value = parse_integer(text(name));
    if (!has(name)) return invalid_argument(fmt::format("{} is not set, though this launcher sets it", name));
    if (!value.ok()) return invalid_argument(fmt::format("{}: {}", name, value.status().message()));
    if (value.value() < least || value.value() > most) {
      return invalid_argument(fmt::format("{} is {}; expected {} to {}", name, value.value(), least, most));
    }
    return static_cast<int>(value.value());
  }
  Result<int> number_or(const char* name, int least, int most, int fallback) const {
    if (!has(name)) return fallback;
    return number(name, least, most);
  }

 private:
  const std::map<std::string, std::string>& variables_;
};

/// Rank and size, and where in the host; local_size stays 0 where it is not told.
Result<LaunchPlace> numbers(const Variables& variables, const Launcher& names) {
  LaunchPlace place;
  place.launcher = names.name;
  TUTTI_ASSIGN(place.size, variables.number(names.size, 1, kMaxRanks));
  TUTTI_ASSIGN(place.rank, variables.number(names.rank, 0, place.size - 1));
  TUTTI_ASSIGN(place.local_size, variables.number_or(names.local_size, 1, place.size, 0));
  TUTTI_ASSIGN(place.local_rank, variables.number_or(names.local_rank, 0, place.size - 1, 0));
  place.one_host = place.local_size == place.size;
  return place;
}

/// For launchers that do not tell the local numbers: with nothing that speaks of another host, all ranks are here.
void assume_one_host(LaunchPlace& place) {
  place.one_host = true;
  place.local_rank = place.rank;
  place.local_size = place.size;
}

Result<LaunchPlace> from_tutti(const Variables& variables, const LaunchEnvironment& launch_environment) {
  TUTTI_ASSIGN(LaunchPlace place, numbers(variables, kTuttiLauncher));
  if (place.local_size == 0 && !variables.has("TUTTI_MASTER_ADDR")) assume_one_host(place);
  if (variables.has("TUTTI_JOB")) {
    place.job = variables.text("TUTTI_JOB");
  } else if (variables.has("TUTTI_MASTER_ADDR")) {
    // On another host the launching process is another one.
    place.job = fmt::format("{} {}", variables.text("TUTTI_MASTER_ADDR"), variables.text("TUTTI_MASTER_PORT"));
  } else {
    place.job = fmt::format("process {}", launch_environment.launcher_process);
  }
  return place;
}

Result<LaunchPlace> from_torchrun(const Variables& variables) {
  TUTTI_ASSIGN(LaunchPlace place, numbers(variables, kTorchrun));
  place.master_address = variables.text("MASTER_ADDR");
  if (place.local_size == 0 && sockets::is_loopback(place.master_address)) assume_one_host(place);
  // torchrun's run id is often just "none", so what distinguishes two jobs is where their stores listen.
  place.job = fmt::format("{} {} {} {}", variables.text("TORCHELASTIC_RUN_ID"), place.master_address,
                          variables.text("MASTER_PORT"), variables.text("TORCHELASTIC_RESTART_COUNT"));
  return place;
}

/// The addresses of a process of Open MPI's: "81.0;tcp://10.6.0.1,192.0.2.2:4103;tcp6://[fd00::2]:4103" gives
/// "10.6.0.1,192.0.2.2,fd00::2".
std::string addresses_in(const std::string& uri) {
  std::string all;
  for (std::size_t at = uri.find("://"); at != std::string::npos; at = uri.find("://", at)) {
    at += 3;
    const std::size_t end = std::min(uri.find(';', at), uri.size());
    std::string part = uri.substr(at, end - at);
    part.erase(std::min(part.rfind(':'), part.size()));
    std::erase_if(part, [](char c) { return c == '[' || c == ']'; });
    for (std::size_t from = 0; from < part.size();) {
      const std::size_t comma = std::min(part.find(',', from), part.size());
      const std::string address = part.substr(from, comma - from);
      if (!address.empty() && !sockets::is_loopback(address)) all += (all.empty() ? "" : ",") + address;
      from = comma + 1;
    }
  }
  return all;
}

Result<LaunchPlace> from_open_mpi(const Variables& variables, const LaunchEnvironment& launch_environment) {
  TUTTI_ASSIGN(LaunchPlace place, numbers(variables, kOpenMpi));
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}) {
    if (place.job.empty()) place.job = variables.text(name);
  }
  if (place.job.empty()) place.job = fmt::format("process {}", launch_environment.launcher_process);
  // mpirun is where the first host of its list is, and so rank 0, unless it was started somewhere else.
  const std::string mpirun = variables.text("OMPI_MCA_orte_hnp_uri");
  const std::string daemon = variables.text("OMPI_MCA_orte_local_daemon_uri");
  const bool elsewhere = !daemon.empty() && daemon.substr(0, daemon.find(';')) != mpirun.substr(0, mpirun.find(';'));
  if (place.rank != 0 || !elsewhere) place.master_address = addresses_in(mpirun);
  return place;
}

/// Returns the address at which mpiexec listens, "HOST:PORT", from its process on this host; empty: unknown.
std::string mpiexec_of(const Variables& variables, const LaunchEnvironment& launch_environment) {
  const std::vector<std::string>& words = launch_environment.launcher_command;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--control-port") return words[i + 1];
  }
  return variables.text("PMI_PORT");
}

Result<LaunchPlace> from_mpich(const Variables& variables, const LaunchEnvironment& launch_environment) {
  TUTTI_ASSIGN(LaunchPlace place, numbers(variables, kMpich));
  if (place.local_size == 0) assume_one_host(place);
  const std::string mpiexec = mpiexec_of(variables, launch_environment);
  if (place.one_host || mpiexec.empty()) {
    place.job = fmt::format("process {}", launch_environment.launcher_process);
  } else {
    place.job = "mpiexec " + mpiexec;
    place.master_address = mpiexec.substr(0, mpiexec.rfind(':'));
  }
  return place;
}

Result<LaunchPlace> from_slurm(const Variables& variables) {
  Launcher names = kSlurm;
  if (!variables.has(names.size)) names.size = "SLURM_NTASKS";
  TUTTI_ASSIGN(LaunchPlace place, numbers(variables, names));
  const char* nodes_name = variables.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  TUTTI_ASSIGN(const int nodes, variables.number_or(nodes_name, 1, kMaxRanks, 0));
  if (nodes == 1) assume_one_host(place);
  place.job = fmt::format("{}.{}", variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID"));
  place.master_address = first_host(variables.text("SLURM_STEP_NODELIST"));
  return place;
}

Result<LaunchPlace> launched(const Variables& variables, const LaunchEnvironment& launch_environment) {
  const Launcher* launcher = launcher_of([&](const char* name) { return variables.text(name); });
  if (launcher == &kTuttiLauncher) return from_tutti(variables, launch_environment);
  if (launcher == &kTorchrun) return from_torchrun(variables);
  if (launcher == &kOpenMpi) return from_open_mpi(variables, launch_environment);
  if (launcher == &kMpich) return from_mpich(variables, launch_environment);
  if (launcher == &kSlurm) return from_slurm(variables);
  return LaunchPlace{};
}

/// 32 well-mixed bytes of the two.
Secret digest(std::string_view purpose, const std::string& job, unsigned user) {
  return Secret::from_text(fmt::format("{} of user {}, job {}", purpose, user, job));
}

/// Field `wanted` (from 1, as proc(5) counts) of /proc/<pid>/stat, past the command name, which may hold anything.
std::optional<long> stat_field(long pid, int wanted) {
  std::FILE* file = std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "re");
  if (file == nullptr) return std::nullopt;
  char text[1024] = {};
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* at = size > 0 ? std::strrchr(text, ')') : nullptr;
  for (int field = 2; at != nullptr && field < wanted; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return std::nullopt;
  return std::strtol(at + 1, nullptr, 10);
}

/// The words of a process's command line.
std::vector<std::string> command_of(long pid) {
  std::vector<std::string> words;
  std::FILE* file = std::fopen(fmt::format("/proc/{}/cmdline", pid).c_str(), "re");
  if (file == nullptr) return words;
  char text[16 << 10] = {};
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  for (std::size_t at = 0; at < size; at += words.back().size() + 1) words.emplace_back(text + at);
  return words;
}

}  // namespace

LaunchEnvironment launch_environment() {
  LaunchEnvironment result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr)
      result.variables[std::string(*entry, static_cast<std::size_t>(equals - *entry))] = equals + 1;
  }
  constexpr int kParent = 4;
  result.launcher_process = stat_field(::getsid(0), kParent).value_or(::getppid());
  result.launcher_command = command_of(result.launcher_process);
  result.user = ::geteuid();
  return result;
}

Result<LaunchPlace> launch_place(const LaunchEnvironment& launch_environment) {
  const Variables variables(launch_environment);
  TUTTI_ASSIGN(LaunchPlace place, launched(variables, launch_environment));
  if (variables.has("TUTTI_MASTER_ADDR")) {
    place.master_address = variables.text("TUTTI_MASTER_ADDR");
    place.one_host = place.size == 1;
  }
  TUTTI_ASSIGN(place.master_port, variables.number_or("TUTTI_MASTER_PORT", 0, 65535, 0));
  return place;
}

Result<JoinInfo> join_info_of(const LaunchPlace& place, const std::string& secret_text, unsigned user) {
  const std::string job = place.job + (place.launcher == "none" ? "" : " under " + place.launcher);
  JoinInfo info;
  info.secret = secret_text.empty() ? digest("secret", job, user) : Secret::from_text(secret_text);
  const Secret name = digest("bootstrap server", job, user);
  if (place.one_host) {
    info.server.address = "@tutti-";
    for (std::size_t i = 0; i < 16; ++i) info.server.address += fmt::format("{:02x}", name.bytes[i]);
    return info;
  }
  if (place.master_address.empty()) {
    return invalid_argument(
        fmt::format("rank {}: {} does not tell where the ranks on several hosts can meet; "
                    "set TUTTI_MASTER_ADDR to the host of rank 0",
                    place.rank, place.launcher));
  }
  info.server.address = place.master_address;
  const int derived = kFirstDerivedPort + (name.bytes[0] | name.bytes[1] << 8) % kDerivedPorts;
  info.server.port = static_cast<std::uint16_t>(place.master_port != 0 ? place.master_port : derived);
  return info;
}

std::string first_host(const std::string& host_list) {
  const std::size_t open = host_list.find('[');
  const std::size_t comma = host_list.find(',');
  if (open == std::string::npos || comma < open) return host_list.substr(0, comma);
  const std::size_t close = host_list.find(']', open);
  if (close == std::string::npos) return host_list.substr(0, open);
  const std::string number = host_list.substr(open + 1, host_list.find_first_of("-,]", open) - open - 1);
  const std::string rest = host_list.substr(close + 1);
  return host_list.substr(0, open) + number + rest.substr(0, rest.find(','));
}

}  // namespace tutti::bootstrap
