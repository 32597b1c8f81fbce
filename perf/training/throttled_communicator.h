// A link of a given speed, to measure and test what overlap hides: a communicator around another one, whose calls end
// no sooner than their bytes would take on such a link.
//
//   Communicator slow = throttle(comm.split(0, comm.rank()), {.bytes_per_second = 100e6});
//
// How: each call runs on the communicator inside, then waits for what is left of bytes / bytes_per_second since it
//   began. It waits asleep, on a thread of this communicator's own, so that the cores are free for computation, as they
//   are when a NIC copies by itself. Calls go over the link one after another, those of communicators split
//   off too: a rank has one link. A collective begins when the last of its ranks has posted it and the link is free,
//   not when a thread comes to it: a NIC works through what is posted by itself. Sends begin when the thread comes to
//   them.
// Bytes: what each rank sends in the best known way (a ring): link_bytes().
// Bits: those of the communicator inside.
// Threads, order, errors: as the communicator inside. After an error nothing is waited for; an abort does not cut short
//   the time of a call whose bytes have arrived.
// Limits: all_to_allv is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "collectives/communicator_interface.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {

struct LinkOptions {
  double bytes_per_second = 1e9;  // above 0
  /// false: a call that is started is done before start returns, so nothing overlaps.
  bool overlap = true;
};

/// Shares `communicator`, which has no other user during the result's lifetime: split() one off.
/// Errors: invalid_argument for a speed that is not above 0.
Communicator throttle(const Communicator& communicator, const LinkOptions& link);

/// Bytes that a rank of `ranks` sends: 2(n-1)/n of the vector for all_reduce, (n-1) counts for reduce_scatter,
/// all_gather, all_to_all, gather and scatter, the vector for broadcast and reduce, none for barrier.
double link_bytes(const Call& call, int ranks);
double link_bytes(std::span<const Transfer> transfers);

}  // namespace tutti::perf
