// Bootstrap: all ranks connect to a server at rank 0, prove that they know the job's secret, and exchange what the
// transports need to know of each other. The server reports the deaths and failures of ranks to all others.
//
// How: a client that does not authenticate (another secret, garbage, a port scan, silence, a message too long, a rank
// that is here already) is refused with one line on standard error. It neither disturbs nor delays the job. After the
// proofs the connection is neither signed nor encrypted: it carries addresses, not data.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// The content of a unique id: the bootstrap server's address and the job's secret, which a rank needs to join.
struct JoinInfo {
  sockets::Endpoint server;
  Secret secret;
};

/// Returns the 128 bytes of a unique id. Errors: invalid_argument, the address is longer than 80 bytes.
Result<std::array<char, 128>> encode_join_info(const JoinInfo& info);
/// Errors: invalid_argument, the bytes are not a unique id.
Result<JoinInfo> decode_join_info(std::span<const char, 128> bytes);

struct Config {
  int rank = 0;
  int size = 1;
  sockets::Endpoint server;  // where rank 0 listens; rank 0 needs none when it brings a listener
  Secret secret;
  std::unique_ptr<sockets::Listener> listener;  // rank 0's; without one it opens one at `server`
  std::chrono::milliseconds deadline{300'000};  // of connect() and of each exchange
};

/// One rank's connection to the bootstrap server, and at rank 0 the server. Owns one thread (none when the size is 1).
///
/// Exchanges are numbered by their order on each rank, so all ranks make them in the same order. Without leave(), the
/// other ranks take the destruction for this rank's death.
/// Threads: announce(), query_progress(), report_progress(), send_leave_notice() and has_left() from any thread, at any
/// time; the others from one thread at a time.
class Bootstrap {
 public:
  /// Waits until all ranks are here. Errors: timeout ("rank 3 of 4 has not come within 5 s; ranks 0, 1, 2 are here",
  /// the same on every rank that came; about 1 s more when rank 0 itself does not answer), peer_died, invalid_argument.
  static Result<std::unique_ptr<Bootstrap>> connect(Config config);
  ~Bootstrap();

  int rank() const { return endpoint_->rank(); }
  int size() const { return endpoint_->size(); }
  /// Returns host, process and address of each rank.
  const std::vector<Identity>& roster() const { return roster_; }

  /// Returns the blobs of all ranks, by rank; at most 16 MiB together. Errors: timeout (names who has not come),
  /// peer_died, aborted (a rank has left), invalid_argument (too large).
  Result<std::vector<std::string>> all_gather(std::string_view mine);
  Status barrier();

  struct Survivors {
    Result<std::vector<std::string>> blobs;  // by rank, the same on all survivors; empty for ranks that take no part
    int late_rank = -1;                      // after a timeout: a rank that has not contributed; -1: the server's fault
  };
  /// Exchanges blobs among the survivors of some ranks, whichever others have died or left.
  /// `name`: the same on all of them, used once. `among`: by rank, which may take part; this rank must. It is asked
  /// again and again, since a rank may turn out to be gone. `mine`: not empty.
  /// Errors: timeout (with `late_rank` the same on all that came), peer_died or aborted (the server is gone).
  Survivors exchange_with_survivors(std::uint64_t name, const std::function<std::vector<bool>()>& among,
                                    std::string_view mine, std::chrono::milliseconds limit);

  /// Registers the callbacks, which this object's thread calls. They must not call leave() or destroy this object.
  /// `on_failure`: once for each rank that dies and each failure that is announced, those before this call included.
  /// `on_progress_report`: for each query_progress() and each report. `on_leave_notice`: for each notice.
  void watch(std::function<void(const Failure&)> on_failure,
             std::function<void(const ProgressReport&)> on_progress_report = {},
             std::function<void(const LeaveNotice&)> on_leave_notice = {});

  /// Sends a failure to all ranks, this one too, unless another failure of that communicator has been sent before.
  /// Returns at once. Errors: the server is gone, or does not read.
  Status announce(std::uint64_t comm_id, Code code, std::string message);

  /// Asks all ranks, this one too, for their progress in the communicator. The threads of their objects answer with
  /// report_progress(), whatever the ranks are doing. Returns at once. Errors: as announce().
  Status query_progress(std::uint64_t comm_id);
  /// Answers a query. `word`: the callers agree on what it means.
  Status report_progress(const ProgressReport& query, std::uint64_t word);

  /// Notifies the ranks `to`, and this one itself, that this rank has left the communicator, or (not `came`) that it
  /// could not join it. Returns at once. Delivery is guaranteed only after this rank has received its own notice back.
  /// Notices of several ranks may arrive together. Errors: as announce().
  Status send_leave_notice(std::uint64_t comm_id, bool came, std::vector<std::int32_t> to);

  /// Sends all ranks the reason why this one cannot go on with the making of the job, and leaves. A rank that waits in
  /// an exchange, or comes to one, fails with that sentence. Reasons that other ranks have given (a death, a deadline)
  /// are not sent again.
  void give_up(const Status& why);
  /// Returns a failure that came before watch() was called, if there was one.
  std::optional<Failure> early_failure() const { return endpoint_->early_failure(); }

  /// Returns true if `rank` has said goodbye. That is no failure, but the rank answers nothing from then on.
  bool has_left(int rank) const { return endpoint_->has_left(rank); }

  /// Says goodbye, within about a second. Nothing but destruction may follow. If rank 0 leaves, the server ends:
  /// exchanges and announcements of the others fail from then on, and deaths are not reported any more.
  Status leave();

 private:
  Bootstrap(int rank, int size, std::chrono::milliseconds deadline);
  Status start(Config config);
  Status start_server(std::unique_ptr<sockets::Listener> listener, const Secret& secret);
  Status start_client(const Config& config, std::chrono::steady_clock::time_point deadline);

  const std::chrono::milliseconds deadline_;
  const int process_;  // a fork's copy of this object has no thread to end
  std::unique_ptr<BootstrapEndpoint> endpoint_;
  std::vector<Identity> roster_;
  std::uint64_t exchanges_ = 0;
  std::thread thread_;
};

}  // namespace tutti::bootstrap
