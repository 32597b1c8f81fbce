#include "collectives/job/networks.h"

#include <fmt/format.h>
#include <strings.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/options.h"
#include "collectives/job/job_context.h"
#include "transport/tcp/tcp.h"
#include "transport/ucx/ucx.h"
#include "transport/verbs/verbs.h"

namespace tutti {

using transport::Wire;
using transport::WireJob;

namespace {

std::atomic<WireOpener> for_tests{nullptr};

struct Row {
  const char* name;
  WireOpener open;
};

constexpr std::array<Row, 3> kTable{{
    {"verbs", [](const WireJob& job) { return transport::VerbsWire::open(job); }},
    {"tcp", [](const WireJob& job) { return transport::TcpWire::open(job); }},
    {"ucx", [](const WireJob& job) { return transport::UcxWire::open(job); }},
}};

}  // namespace

Result<std::unique_ptr<Wire>> open_wire(const WireJob& job) {
  if (const WireOpener open = for_tests.load()) return open(job);
  const std::string& preferred = options::text(Option::network);
  std::string reasons;
  bool is_damaged = false;  // a network is there, and cannot be used
  for (const Row& row : kTable) {
    if (preferred != "auto" && preferred != row.name) continue;
    Result<std::unique_ptr<Wire>> wire = row.open(job);
    if (wire.ok()) {
      if (is_damaged) {
        log::error("the network is {}; passed over: {}", row.name, reasons);
      } else if (!reasons.empty()) {
        log::info("the network is {}; passed over: {}", row.name, reasons);
      }
      return wire;
    }
    const Status& why = wire.status();
    // A setting that cannot be met is the user's to mend, whatever else there is.
    if (why.code() == Code::invalid_argument) return why;
    is_damaged = is_damaged || why.code() != Code::unsupported;
    // What this process cannot do by TCP's calls it is not to hide behind another network, which its peers have not
    // taken.
    if (preferred == "auto" && std::string_view(row.name) == "tcp" && why.code() == Code::system) return why;
    // Most errors name their network.
    const bool says = strncasecmp(why.message().c_str(), row.name, std::string_view(row.name).size()) == 0;
    reasons +=
        fmt::format("{}{}{}", reasons.empty() ? "" : "; ", says ? "" : fmt::format("{}: ", row.name), why.message());
  }
  return unsupported(
      fmt::format("no network to the other hosts: {}",
                  reasons.empty() ? "this build has none that TUTTI_NETWORK=" + preferred + " allows" : reasons));
}

std::vector<TriedWire> try_wires(const std::string& own_ip) {
  WireJob job;
  job.hosts = {0};
  job.names = {"rank 0"};
  job.lanes = kLanes;
  job.own_ip = own_ip;
  std::vector<TriedWire> tried;
  for (const Row& row : kTable) {
    const Result<std::unique_ptr<Wire>> wire = row.open(job);
    tried.push_back({row.name, wire.status(), wire.ok() ? wire.value()->info() : transport::WireInfo{}});
  }
  return tried;
}

void set_wire_for_tests(WireOpener open) { for_tests.store(open); }

}  // namespace tutti
