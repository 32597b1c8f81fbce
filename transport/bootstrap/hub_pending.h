// Connections to the hub (hub.h) that have not proven themselves, and how they are turned away.
#pragma once

#include <string>

#include "base/log.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/local_rank.h"
#include "transport/bootstrap/message.h"
#include "transport/bootstrap/secret.h"

namespace tutti::bootstrap {

struct Pending {
  Connection connection;
  Handshake handshake;
  LocalRank::Clock::time_point deadline;
  std::string peer;
};

/// Says on standard error who is turned away, the first times.
class Refusals {
 public:
  /// `answered`: it speaks as ranks do, and is told why.
  void tell(const std::string& peer, const std::string& why, bool answered = false) {
    if (answered) last_answered_ = "; " + peer + " was refused: " + why;
    if (++told_ <= kMostTold) {
      log::error("refused {}: {}{}", peer, why,
                 told_ == kMostTold ? "; further refusals are told with TUTTI_LOG=info" : "");
    } else {
      log::info("refused {}: {}", peer, why);
    }
  }

  /// Of those, the last one, as the end of a sentence; empty: there was none.
  const std::string& last_answered() const { return last_answered_; }

 private:
  static constexpr int kMostTold = 16;  // before the log level decides
  int told_ = 0;
  std::string last_answered_;
};

/// To the other end, which may be a rank of this job. `code`: what its own error is to have.
inline void answer_refusal(Pending& pending, const Secret& secret, Code code, const std::string& why) {
  Refusal refusal;
  refusal.code = code;
  refusal.text = why;
  refusal.proof = prove(secret, pending.handshake, refusal);
  pending.connection.send(frame_of(refusal));
}

}  // namespace tutti::bootstrap
