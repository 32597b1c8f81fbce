// The program around a benchmark: command line, ranks, the loop over rows, the exit status.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/standard_streams.h"
#include "launch/launch_local.h"
#include "launch/launcher.h"
#include "perf/driver/collective.h"
#include "perf/driver/gpu.h"
#include "perf/driver/measure.h"
#include "perf/driver/report.h"
#include "perf/driver/settings.h"

namespace tutti::perf {
namespace {

/// Names of nccl-tests: alltoall_perf and sendrecv_perf are one word.
std::string program_of(const PerfCollective& collective) {
  const std::string_view name = collective.name();
  if (name == "all_to_all") return "alltoall_perf";
  return name == "send_recv" ? "sendrecv_perf" : fmt::format("{}_perf", name);
}

Exit exit_of(Code code) {
  switch (code) {
    case Code::ok: return Exit::ok;
    case Code::timeout: return Exit::timeout;
    case Code::unsupported: return Exit::unsupported;
    case Code::system:
    case Code::memory_limit: return Exit::system;
    case Code::invalid_argument:
    case Code::mismatch:
    case Code::peer_died:
    case Code::aborted: break;
  }
  return Exit::collective;
}

/// How many ranks of the same host come before this one.
int place_of(const std::vector<Member>& members, int rank) {
  const Member& mine = members[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::count_if(members.begin(), members.begin() + rank,
                                        [&](const Member& other) { return std::strcmp(other.host, mine.host) == 0; }));
}

std::vector<Member> exchange_members(Communicator& comm, bool on_gpus) {
  Member mine;
  mine.rank = comm.rank();
  mine.pid = static_cast<int>(getpid());
  gethostname(mine.host, sizeof(mine.host) - 1);
  std::vector<Member> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&mine, all.data(), sizeof(Member), DataType::u8);
  for (Member& member : all) {
    // Every host has the GPUs of this one, as far as the head of the table is concerned.
    if (on_gpus) std::strncpy(member.gpu, gpu_name(place_of(all, member.rank)).c_str(), sizeof(member.gpu) - 1);
  }
  return all;
}

double bandwidth_floor() {
  const char* text = std::getenv("NCCL_TESTS_MIN_BW");
  return text != nullptr ? std::strtod(text, nullptr) : 0;
}

/// All rows once. The same on every rank; rank 0 prints.
void run_rows(const Settings& settings, const PerfCollective& collective, Communicator& comm, Bench& bench,
              Report& report) {
  const bool first_rank = comm.rank() == 0;
  const std::vector<ReduceOp> ops = collective.reduces() ? settings.ops : std::vector{ReduceOp::sum};
  const bool every_root = collective.rooted() && settings.root < 0;
  const int first_root = collective.rooted() && !every_root ? settings.root : 0;
  const int last_root = every_root ? comm.size() - 1 : first_root;
  for (const DataType type : settings.types) {
    for (const ReduceOp op : ops) {
      const bool one_of_many = settings.types.size() > 1 || ops.size() > 1;
      if (one_of_many && !applies(op, type)) continue;
      for (int root = first_root; root <= last_root; ++root) {
        try {
          for (const std::size_t bytes : row_sizes(settings)) {
            const Row row = bench.measure({.bytes = bytes, .type = type, .op = op, .root = root});
            if (first_rank) report.print_row(row);
          }
        } catch (const Error& error) {
          // "all" leaves out the types and operations that the backend lacks; one that was asked for by name is an
          // error.
          if (error.code() != Code::unsupported || !one_of_many) throw;
          if (first_rank) report.print_note(fmt::format("skipped: {}", error.what()));
        }
      }
    }
  }
}

/// Checks before the measurement that the results can be written. An old file stays until there are new results.
void check_json_file(const Settings& settings) {
  if (settings.json_file.empty() || std::ofstream(settings.json_file, std::ios::app)) return;
  throw Error(Code::system, fmt::format("-J {}: cannot be written", settings.json_file));
}

/// One rank, from its communicator to its exit status.
Exit run_rank(const Settings& settings, const PerfCollective& collective, Communicator comm,
              const std::string& command) {
  if (collective.rooted() && settings.root >= comm.size()) {
    if (comm.rank() == 0) {
      fmt::print(stderr, "{}: -r {}: expected a rank below {}\n", program_of(collective), settings.root, comm.size());
    }
    return Exit::usage;
  }
  if (comm.rank() == 0) check_json_file(settings);
  const std::vector<Member> members = exchange_members(comm, settings.memory == MemoryKind::device);
  Report report(settings, collective, members, command);
  Bench bench(settings, collective, comm, place_of(members, comm.rank()));
  if (comm.rank() == 0) report.print_head();
  for (int cycle = 0; settings.run_cycles == 0 || cycle < settings.run_cycles; ++cycle) {
    run_rows(settings, collective, comm, bench, report);
  }
  // Only rank 0 has the rows; all ranks return the verdict.
  const Summary summary = summarize(report.rows(), bandwidth_floor());
  Exit exit = summary.wrong > 0 || !summary.bandwidth_ok ? Exit::wrong_data : Exit::ok;
  if (comm.rank() == 0) {
    report.print_foot(summary, comm.memory().total());
    if (!report.write_json(summary, fmt::format("{}_{}", collective.name(), settings.backend))) {
      fmt::print(stderr, "{}: -J {}: could not be written\n", program_of(collective), settings.json_file);
      exit = Exit::system;
    }
  }
  double verdict = static_cast<double>(exit);
  comm.broadcast(&verdict, &verdict, 1, DataType::f64, 0);
  return static_cast<Exit>(static_cast<int>(verdict));
}

/// Words what went wrong and chooses the exit status. `name`: the program's.
template <class Body>
Exit guarded(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return exit_of(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: not enough memory for the buffers\n", name);
    return Exit::system;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return Exit::internal;
  }
}

Options communicator_options(const Settings& settings) {
  Options options;
  options.backend = settings.backend;
  options.deterministic = options.deterministic || settings.deterministic;
  if (settings.timeout.count() > 0) options.timeout = settings.timeout;
  return options;
}

Exit run_threads(const Settings& settings, const PerfCollective& collective, const std::string& command) {
  std::vector<Communicator> comms = Communicator::in_process(settings.threads, communicator_options(settings));
  std::vector<Exit> exits(comms.size(), Exit::internal);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    threads.emplace_back([&, i] {
      exits[i] = guarded(program_of(collective), [&] { return run_rank(settings, collective, comms[i], command); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Exit exit : exits) {
    if (exit != Exit::ok) return exit;
  }
  return Exit::ok;
}

/// Returns whether the command line asks to start ranks, or to be one of them.
Exit run(const Settings& settings, const PerfCollective& collective, const std::string& command) {
  return guarded(program_of(collective), [&] {
    if (settings.threads > 1) return run_threads(settings, collective, command);
    return run_rank(settings, collective, Communicator::from_environment(communicator_options(settings)), command);
  });
}

/// Whether this process starts the ranks that are asked for, if any.
Result<bool> starts_them(const Settings& settings) {
  if (settings.ranks > 0) return starts_ranks("--ranks", settings.ranks);
  if (settings.threads > 1) return starts_ranks("-t", settings.threads);
  return false;
}

}  // namespace

int perf_main(int argc, char** argv, const PerfCollective& collective) {
  open_standard_streams();
  const std::string name = program_of(collective);
  const Parsed parsed = parse_settings(argc, argv);
  if (parsed.exit) {
    fmt::print(*parsed.exit == Exit::ok ? stdout : stderr, "{}\n", parsed.message);
    return end_of_output(name.c_str(), static_cast<int>(*parsed.exit));
  }
  const Settings& settings = parsed.settings;
  const Result<bool> starts = starts_them(settings);
  if (!starts.ok()) {
    fmt::print(stderr, "{}: {}\n", name, starts.status().message());
    return static_cast<int>(Exit::usage);
  }
  std::vector<std::string> command(argv, argv + argc);
  if (starts.value() && settings.ranks > 0) {
    const Exit checked = guarded(program_of(collective), [&] {
      check_json_file(settings);  // once, before the ranks start
      return Exit::ok;
    });
    if (checked != Exit::ok) return static_cast<int>(checked);
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error) command[0] = self.string();
    return launch_local({.ranks = settings.ranks, .backend = settings.backend}, command);
  }
  // Ranks as threads have several streams each, and streams that share a queue to the GPU may wait for each other for
  // ever: as many queues as there are, unless the user says otherwise. Before the driver is used.
  if (settings.memory == MemoryKind::device) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  const Exit exit = run(settings, collective, fmt::format("{}", fmt::join(command, " ")));
  return end_of_output(name.c_str(), static_cast<int>(exit));
}

}  // namespace tutti::perf
