// What a wire gives between two processes: half a round trip of a put and its signal, and the bandwidth of many.
//
//   wire_bench [--wire tcp] [--sizes 8,4096,65536,...] [--plain] [--sleep] [-J FILE]
//   wire_bench --rank 0 --address 10.0.0.1:5000        on one host, and with --rank 1 on the other
//
// Without --rank both processes are started here and joined by loopback. Latency: each put (8 B: a put of 8 B) is
// answered by one as large. Bandwidth: one way, several puts under way, each answered by a signal.
// Exit status: 0 good, 2 a failure (one sentence on standard error), 6 wrong usage.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/standard_streams.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"
#include "transport/ucx/ucx.h"
#include "transport/verbs/verbs.h"

namespace tutti::perf {
namespace {

using transport::Flush;
using transport::Region;
using transport::SignalCell;
using transport::Ticket;
using transport::Wire;
using transport::WireJob;

constexpr std::size_t kData = 4096;  // before it: cells
constexpr int kUnderWay = 4;         // puts, for bandwidth
constexpr std::int64_t kTimeoutNs = 30'000'000'000;
constexpr std::chrono::milliseconds kSleepMost{10};

struct Options {
  std::string wire = "tcp";
  std::vector<std::size_t> sizes{8, 64, 1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};
  int rank = -1;
  double effort = 1;  // factor of the rounds
  std::string address;
  std::string ip;
  bool plain = false;  // sources in memory that is not exposed
  bool sleep = false;  // while waiting, instead of spinning
  std::string json;
};

struct Row {
  std::size_t bytes = 0;
  double best_us = 0;             // half a round trip, the shortest
  double half_round_trip_us = 0;  // the median
  double gb_per_s = 0;
};

Result<std::unique_ptr<Wire>> open_wire(const std::string& name, const WireJob& job) {
  if (name == "tcp") return transport::TcpWire::open(job);
  if (name == "ucx") return transport::UcxWire::open(job);
  if (name == "verbs") return transport::VerbsWire::open(job);
  return invalid_argument(fmt::format("there is no wire '{}'", name));
}

/// One of the two processes.
class Bench {
 public:
  static Result<std::vector<Row>> run(const Options& options, bootstrap::Config config) {
    Bench bench(options, config.rank);
    TUTTI_TRY(bench.meet(std::move(config)));
    std::vector<Row> rows;
    for (const std::size_t bytes : options.sizes) {
      Row row{bytes, 0, 0, 0};
      TUTTI_TRY(bench.latency(bytes, row));
      TUTTI_TRY(bench.bandwidth(bytes, row));
      rows.push_back(row);
      if (bench.own_ == 0) {
        fmt::print("{:>10} {:>10.2f} {:>10.2f} {:>10.3f}\n", row.bytes, row.best_us, row.half_round_trip_us,
                   row.gb_per_s);
        std::fflush(stdout);
      }
    }
    TUTTI_TRY(bench.setup_->barrier());
    bench.wire_.reset();
    TUTTI_TRY(bench.setup_->leave());
    return rows;
  }

 private:
  Bench(const Options& options, int own) : options_(options), own_(own) {}
  ~Bench() {
    wire_.reset();
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }

  Status meet(bootstrap::Config config) {
    TUTTI_ASSIGN(setup_, bootstrap::Bootstrap::connect(std::move(config)));
    WireJob job;
    job.rank = own_;
    job.hosts = {0, 1};
    job.names = {"rank 0", "rank 1"};
    job.own_ip = !options_.ip.empty() ? options_.ip
                 : options_.rank < 0  ? "127.0.0.1"
                                      : setup_->roster()[static_cast<std::size_t>(own_)].address;
    TUTTI_ASSIGN(wire_, open_wire(options_.wire, job));
    TUTTI_ASSIGN(const std::vector<std::string> addresses, setup_->all_gather(wire_->address()));
    TUTTI_TRY(wire_->meet(addresses));
    const std::size_t largest = *std::max_element(options_.sizes.begin(), options_.sizes.end());
    stride_ = (largest + 4095) / 4096 * 4096;
    bytes_ = kData + 2 * kUnderWay * stride_;  // destinations, then sources
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return system_error("mmap", errno);
    memory_ = static_cast<std::byte*>(memory);
    std::memset(memory_, 0, bytes_);
    plain_.resize(options_.plain ? kUnderWay * stride_ : 0);
    TUTTI_ASSIGN(const std::string key, wire_->expose(memory_, bytes_));
    TUTTI_ASSIGN(const std::vector<std::string> keys, setup_->all_gather(key));
    TUTTI_ASSIGN(peer_, wire_->attach(1 - own_, keys[static_cast<std::size_t>(1 - own_)], bytes_));
    if (own_ == 0) {
      fmt::print("# {} over {}; rank 0 at {}\n", wire_->info().name, wire_->info().devices, job.own_ip);
      fmt::print("# half a round trip in us, the shortest and the median; GB/s one way, {} puts under way\n",
                 kUnderWay);
      fmt::print("# {:>8} {:>10} {:>10} {:>10}\n", "bytes", "shortest", "median", "GB/s");
    }
    return {};
  }

  std::byte* source(int slot) {
    std::byte* base = options_.plain ? plain_.data() : memory_ + kData + kUnderWay * stride_;
    return base + static_cast<std::size_t>(slot) * stride_;
  }
  static std::size_t destination(int slot, std::size_t stride) {
    return kData + static_cast<std::size_t>(slot) * stride;
  }

  template <class Condition>
  Status until(Condition&& come) {
    const std::int64_t end = now_ns() + kTimeoutNs;
    for (int looks = 0; !come(); ++looks) {
      if (wire_->progress()) continue;
      if (options_.sleep) {
        wire_->sleep(kSleepMost);
      } else if (looks % 256 != 255) {
        continue;
      }
      TUTTI_TRY(wire_->broken(1 - own_));
      if (now_ns() > end) return {Code::timeout, "the other process does not answer"};
    }
    return {};
  }
  Status until_count(std::uint64_t count) {
    const auto& cell = *reinterpret_cast<const SignalCell*>(memory_);
    return until([&] { return cell.count.load(std::memory_order_acquire) >= count; });
  }
  Status until_completed(Ticket ticket) {
    return until([&] { return wire_->completed(ticket); });
  }

  Status say(int slot, std::size_t bytes, Ticket& ticket) {
    TUTTI_TRY(wire_->put(1 - own_, 0, peer_, destination(slot, stride_), source(slot), bytes, ticket));
    return wire_->signal(1 - own_, 0, peer_, 0, ++said_, 0, Flush::now);
  }

  int rounds_of(int usual) const { return std::max(kUnderWay, static_cast<int>(usual * options_.effort)); }

  Status latency(std::size_t bytes, Row& row) {
    const int rounds = rounds_of(bytes < 100'000 ? 2000 : bytes < 2'000'000 ? 200 : 20);
    std::vector<double> times;
    Ticket ticket = 0;
    for (int i = -rounds / 10 - 2; i < rounds; ++i) {
      const std::int64_t begin = now_ns();
      if (own_ == 0) TUTTI_TRY(say(0, bytes, ticket));
      TUTTI_TRY(until_count(++heard_));
      if (own_ == 1) TUTTI_TRY(say(0, bytes, ticket));
      if (i >= 0) times.push_back(static_cast<double>(now_ns() - begin) / 2e3);
      TUTTI_TRY(until_completed(ticket));
    }
    row.best_us = *std::min_element(times.begin(), times.end());
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    row.half_round_trip_us = times[static_cast<std::size_t>(rounds) / 2];
    return setup_->barrier();
  }

  Status bandwidth(std::size_t bytes, Row& row) {
    const int rounds = rounds_of(bytes < 100'000 ? 4000 : bytes < 2'000'000 ? 800 : 60);
    std::vector<Ticket> tickets(kUnderWay);
    const std::int64_t begin = now_ns();
    const std::uint64_t first = heard_;
    for (int i = 0; i < rounds; ++i) {
      const int slot = i % kUnderWay;
      Ticket& ticket = tickets[static_cast<std::size_t>(slot)];
      if (own_ == 0) {
        if (i >= kUnderWay) TUTTI_TRY(until_count(first + static_cast<unsigned>(i - kUnderWay + 1)));
        TUTTI_TRY(until_completed(ticket));
        TUTTI_TRY(say(slot, bytes, ticket));
      } else {
        TUTTI_TRY(until_count(first + static_cast<unsigned>(i + 1)));
        TUTTI_TRY(say(slot, 0, ticket));
      }
    }
    heard_ = first + static_cast<unsigned>(rounds);
    TUTTI_TRY(until_count(heard_));
    for (const Ticket ticket : tickets) TUTTI_TRY(until_completed(ticket));
    row.gb_per_s = static_cast<double>(bytes) * rounds / static_cast<double>(now_ns() - begin);
    return setup_->barrier();
  }

  const Options& options_;
  const int own_;
  std::unique_ptr<bootstrap::Bootstrap> setup_;
  std::unique_ptr<Wire> wire_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t stride_ = 0;
  std::vector<std::byte> plain_;
  Region peer_ = 0;
  std::uint64_t said_ = 0;
  std::uint64_t heard_ = 0;
};

int fail(const Status& status) {
  fmt::print(stderr, "wire_bench: {}\n", status.message());
  return 2;
}

int run_rank(const Options& options, bootstrap::Config config) {
  const bool first = config.rank == 0;
  config.size = 2;
  config.secret = bootstrap::Secret::from_text("wire_bench");
  config.deadline = std::chrono::milliseconds(kTimeoutNs / 1'000'000);
  const Result<std::vector<Row>> rows = Bench::run(options, std::move(config));
  if (!rows.ok()) return fail(rows.status());
  if (first && !options.json.empty()) {
    nlohmann::json all = nlohmann::json::array();
    for (const Row& row : rows.value()) {
      all.push_back({{"bytes", row.bytes},
                     {"best_us", row.best_us},
                     {"half_round_trip_us", row.half_round_trip_us},
                     {"gb_per_s", row.gb_per_s}});
    }
    std::ofstream(options.json) << nlohmann::json{{"wire", options.wire}, {"rows", all}}.dump(1) << "\n";
  }
  return 0;
}

/// Both ranks as children of this process, which itself opens nothing.
int run_both(const Options& options) {
  Result<std::unique_ptr<sockets::Listener>> listener = sockets::Listener::open_local();
  if (!listener.ok()) return fail(listener.status());
  const sockets::Endpoint server = listener.value()->endpoint();
  int outcome = 0;
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = ::fork();
    if (children[rank] != 0) continue;
    bootstrap::Config config;
    config.rank = rank;
    config.server = server;
    if (rank == 0) config.listener = listener.take();
    std::exit(run_rank(options, std::move(config)));
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) outcome = 2;
  }
  return outcome;
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Latency and bandwidth of a wire between two processes");
  app.add_option("--wire", options.wire, "tcp, ucx or verbs")->capture_default_str();
  app.add_option("--sizes", options.sizes, "bytes of a put, separated by commas")->delimiter(',');
  app.add_option("--effort", options.effort, "factor of the number of rounds")->capture_default_str();
  app.add_option("--rank", options.rank, "of this process, where each is started by itself")->check(CLI::Range(0, 1));
  app.add_option("--address", options.address, "HOST:PORT where rank 0 listens, with --rank");
  app.add_option("--ip", options.ip, "the address of this host that chooses the interface");
  app.add_flag("--plain", options.plain, "put from memory that is not exposed");
  app.add_flag("--sleep", options.sleep, "sleep while waiting");
  app.add_option("-J,--json", options.json, "write the table of rank 0 to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("wire_bench", app.exit(error) == 0 ? 0 : 6);
  }
  if (options.rank < 0) return end_of_output("wire_bench", run_both(options));
  const std::size_t colon = options.address.rfind(':');
  bootstrap::Config config;
  config.rank = options.rank;
  unsigned port = 0;
  if (colon != std::string::npos) {
    config.server.address = options.address.substr(0, colon);
    std::from_chars(options.address.data() + colon + 1, options.address.data() + options.address.size(), port);
  }
  if (port == 0 || port > 65535) return fail(invalid_argument("--rank needs --address HOST:PORT")), 6;
  config.server.port = static_cast<std::uint16_t>(port);
  return run_rank(options, std::move(config));
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) { return tutti::perf::main(argc, argv); }
