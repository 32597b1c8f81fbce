// The meeting place of a job's ranks: everybody connects to rank 0, proves that it knows the job's secret, exchanges
// what the transports need to know of each other, and hears at once when somebody dies.
//
// Strangers (another secret, garbage, port scans, connections that say nothing, messages too long, a rank that is here
// already) are refused with one line on standard error; they neither disturb nor delay the job. After the proofs the
// connection is neither signed nor encrypted: it carries addresses, not data.
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
#include "transport/bootstrap/local_rank.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// What ranks must be told to find each other.
struct Meeting {
  sockets::Endpoint hub;
  Secret secret;
};

/// As the 128 bytes of a unique id. Errors: the address is longer than 80 bytes.
Result<std::array<char, 128>> encode_meeting(const Meeting& meeting);
/// Errors: invalid_argument when the bytes are not a unique id.
Result<Meeting> decode_meeting(std::span<const char, 128> bytes);

struct Config {
  int rank = 0;
  int size = 1;
  sockets::Endpoint hub;  // where rank 0 listens; rank 0 needs none when it brings a listener
  Secret secret;
  std::unique_ptr<sockets::Listener> listener;  // rank 0's; without one it opens one at `hub`
  std::chrono::milliseconds deadline{300'000};  // of connect() and of each exchange
};

/// One rank's place in the meeting. Owns one thread (none when the size is 1).
///
/// Threads: announce(), ask(), answer(), say_farewell() and has_left() from any thread, any time; the others from one
/// thread at a time.
/// Exchanges are numbered by their order on each rank, so all ranks make them in the same order. Without leave(),
/// destruction looks to the others like this rank's death.
class Bootstrap {
 public:
  /// Until all ranks are here. Errors: timeout ("rank 3 of 4 has not come within 5 s; ranks 0, 1, 2 are here", the same
  /// on every rank that came; about 1 s more when rank 0 itself does not answer), peer_died, invalid_argument.
  static Result<std::unique_ptr<Bootstrap>> connect(Config config);
  ~Bootstrap();

  int rank() const { return local_->rank(); }
  int size() const { return local_->size(); }
  /// Host, process and address of each rank.
  const std::vector<Identity>& roster() const { return roster_; }

  /// Everybody's blob, by rank; at most 16 MiB together. Errors: timeout (names who has not come), peer_died, aborted
  /// (a rank has left), invalid_argument (too large).
  Result<std::vector<std::string>> all_gather(std::string_view mine);
  Status barrier();

  /// An exchange of those of some ranks that are left, whoever else has died or left the meeting: their blobs, by rank,
  /// the same for all of them; nothing of the others. `name`: as all of them call it, once. `among`: by rank, who may
  /// take part, this rank too; asked again and again, since one may turn out to come no more. `mine`: not empty.
  /// Errors: timeout (the message is the number of a rank that has not come, the same on all that came), peer_died or
  /// aborted (the meeting place is gone).
  Result<std::vector<std::string>> regroup(std::uint64_t name, const std::function<std::vector<bool>()>& among,
                                           std::string_view mine, std::chrono::milliseconds limit);

  /// Calls `on_failure` from this object's thread, once for each rank that dies and each failure that is announced,
  /// those before this call included; `on_standing` for each question and each answer (ask()); and `on_farewells` for
  /// what is said by say_farewell(). They must not call leave() or destroy this object.
  void watch(std::function<void(const Failure&)> on_failure, std::function<void(const Standing&)> on_standing = {},
             std::function<void(const Farewells&)> on_farewells = {});

  /// Tells all ranks, this one too, unless another failure of that scope has been told before; returns at once, whether
  /// they read or not. Errors: the meeting place is gone or does not read.
  Status announce(std::uint64_t scope, Code code, std::string message);

  /// Asks all ranks, this one too, where they stand in `scope`, whatever they are doing: their objects' threads answer.
  /// What that means is up to the callers. Returns at once. Errors: as announce().
  Status ask(std::uint64_t scope);
  Status answer(const Standing& question, std::uint64_t word);

  /// Tells the ranks `to`, and this one itself, that this one has done its part in `scope`, or (not `came`) that it
  /// could not come. Returns at once: the meeting may end before it is passed on, but not once this rank has heard its
  /// own. Those of several ranks may be told together. Errors: as announce().
  Status say_farewell(std::uint64_t scope, bool came, std::vector<std::int32_t> to);

  /// Tells all ranks why this one cannot go on with the making of the communicator, and leaves. Whoever waits in an
  /// exchange, or comes to one, fails with that sentence. A reason that others have given (a death, a deadline) is told
  /// by nobody again.
  void give_up(const Status& why);
  /// A failure that was told before watch() was called; nothing: there was none.
  std::optional<Failure> early_failure() const { return local_->unheard_failure(); }

  /// Has `rank` said goodbye? That is no failure, but it will answer nothing any more.
  bool has_left(int rank) const { return local_->has_left(rank); }

  /// An orderly goodbye, within about a second. Nothing but destruction may follow. That of rank 0 ends the meeting:
  /// exchanges and announcements of the others fail from then on, and nobody hears of deaths.
  Status leave();

 private:
  Bootstrap(int rank, int size, std::chrono::milliseconds deadline);
  Status meet(Config config);
  Status serve(std::unique_ptr<sockets::Listener> listener, const Secret& secret);
  Status join(const Config& config, std::chrono::steady_clock::time_point deadline);

  const std::chrono::milliseconds deadline_;
  const int process_;  // a fork's copy of this object has no thread to end
  std::unique_ptr<LocalRank> local_;
  std::vector<Identity> roster_;
  std::uint64_t exchanges_ = 0;
  std::thread thread_;
};

}  // namespace tutti::bootstrap
