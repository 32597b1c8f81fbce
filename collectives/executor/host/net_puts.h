// The puts of this rank to ranks on other hosts, as long as a source is still being read.
//
// On links with load and store a put is done when it returns; so plans may write over its source in the next step, and
// signal others that they may. Here that must wait:
//   before_write()   until what is written over has been read
//   before_signal()  until all else has, since the peer may take the signal as leave to write over something (what
//                    goes to that peer itself is read before the signal goes). Sources not written in this call
//                    (an input that is not the output) do not count
//   finish()         until everything has: the buffers are the caller's again
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collectives/executor/wait/wait.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

class NetPuts {
 public:
  NetPuts(transport::NetLinks& links, Waiter& waiter) : links_(links), waiter_(waiter) {}

  /// `fixed`: the source is not written before finish().
  Status put(int peer, int lane, const void* to, const void* from, std::size_t bytes, bool fixed);
  /// Puts to memory of the peer that is no window. REQUIRES: the source is not written before finish().
  Status put(int peer, int lane, transport::Region to, std::size_t at, const void* from, std::size_t bytes);
  /// Whether something is still sent from there.
  bool reads(const void* begin, std::size_t bytes) const;
  Status before_write(const void* begin, std::size_t bytes);
  Status before_signal(int peer);
  /// Stays until all sources are free and what was sent has left: with `flush` also what was held back.
  Status finish(bool flush = true);
  /// Gives the puts in progress a moment, after a failure, and then takes their buffers from the wire, since they may
  /// be freed when the call returns.
  void drop();

 private:
  struct Pending {
    transport::Ticket ticket = 0;
    int peer = -1;
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    bool fixed = false;
    bool overlaps(const void* other, std::size_t bytes) const {
      const auto* first = static_cast<const std::byte*>(other);
      return begin < first + bytes && first < end;
    }
  };
  Status keep(const Status& status, transport::Ticket ticket, int peer, const void* from, std::size_t bytes,
              bool fixed);
  template <class Matters>
  Status settle(Matters&& matters);

  transport::NetLinks& links_;
  Waiter& waiter_;
  std::vector<Pending> pending_;
};

}  // namespace tutti::executor
