// meet [SECONDS]: one rank of a job that meets and parts, whatever has launched it. Each rank prints one line:
//
//   rank 1 of 2 met by Open MPI on several hosts: alpha 10.99.0.1 eth0, beta 10.99.0.2 eth0
//
// meet SECONDS PIPE: the same by a unique id that rank 0 makes and hands to rank 1 through a named pipe.
//
// The words behind the colon are host, address and interface of each rank ("-" for none: all are on one host). Errors
// go to standard error, with status 1.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "base/options.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/environment.h"

namespace tutti::bootstrap {
namespace {

/// Makes an id as create_unique_id() does, and hands it over.
Result<JoinInfo> meeting_by_id(Config& config, const std::string& pipe) {
  std::array<char, 128> id{};
  if (config.rank == 0) {
    TUTTI_ASSIGN(config.listener, sockets::Listener::open({}));
    TUTTI_ASSIGN(id, encode_join_info({config.listener->endpoint(), Secret::random()}));
    std::ofstream(pipe, std::ios::binary).write(id.data(), id.size());
  } else {
    std::ifstream(pipe, std::ios::binary).read(id.data(), id.size());
  }
  return decode_join_info(id);
}

Status meet(std::chrono::milliseconds deadline, const std::string& pipe) {
  const LaunchEnvironment here = launch_environment();
  TUTTI_ASSIGN(const LaunchPlace place, launch_place(here));
  Config config;
  config.rank = place.rank;
  config.size = place.size;
  TUTTI_ASSIGN(const JoinInfo info, pipe.empty() ? join_info_of(place, options::text(Option::secret), here.user)
                                                 : meeting_by_id(config, pipe));
  config.server = info.server;
  config.secret = info.secret;
  config.deadline = deadline;
  TUTTI_ASSIGN(const std::unique_ptr<Bootstrap> bootstrap, Bootstrap::connect(std::move(config)));
  TUTTI_TRY(bootstrap->barrier());
  std::string line = fmt::format("rank {} of {} met by {} on {}: ", place.rank, place.size, place.launcher,
                                 info.server.is_unix() ? "one host" : "several hosts");
  const char* comma = "";
  for (const Identity& identity : bootstrap->roster()) {
    line += fmt::format("{}{} {} {}", std::exchange(comma, ", "), identity.host,
                        identity.address.empty() ? "-" : identity.address,
                        identity.interface.empty() ? "-" : identity.interface);
  }
  fmt::print("{}\n", line);
  TUTTI_TRY(bootstrap->barrier());
  return bootstrap->leave();
}

}  // namespace
}  // namespace tutti::bootstrap

int main(int argc, char** argv) {
  const tutti::Status status =
      tutti::bootstrap::meet(std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 20), argc > 2 ? argv[2] : "");
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
