// Calls on device memory of several hosts in which nothing is added: a NIC can carry each fragment from one
// GPU's slots into another's (GPUDirect), and the host touches no byte. What goes where, in one fragment. Pure.
//
//   collective    from the slot that goes in      into the slot that comes out, of
//   all_gather    the block                       every rank, at the sender's place
//   all_to_all    each rank's block               that rank, at the sender's place
//   gather        the block                       the root, at the sender's place
//   scatter       each rank's block, at the root  that rank
//   broadcast     the block, at the root          every rank
//
// Each is the fewest bytes possible, except a broadcast, whose root sends once to each rank: worth it among few ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/call.h"

namespace tutti {

/// Whether a call is served so. Sums are not: the host adds.
bool is_gdr(const Call& call, int ranks);

struct GdrMove {
  int rank = 0;          // whose slot it goes to; what stays on this rank is for the stream
  std::size_t from = 0;  // bytes, in the slot that goes in
  std::size_t to = 0;    // bytes, in the one that comes out
  std::size_t bytes = 0;
};

/// `call`: one fragment's, whose buffers are the slots, with blocks one behind the other. REQUIRES: is_gdr().
std::vector<GdrMove> gdr_moves(const Call& call, int rank, int ranks);

}  // namespace tutti
