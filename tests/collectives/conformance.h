// One check for every collective, algorithm, size, type and placement: what the ranks get is compared with what a plain
// loop over all ranks' inputs gives. Inputs are small whole numbers, so that sums are exact in every type and order.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "collectives/reduce/reduce.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

struct Case {
  Collective collective = Collective::all_reduce;
  std::string algorithm;
  std::size_t count = 1;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  bool registered = false;
  bool lean = false;  // null for buffers that this rank's part in the call does not need
  bool deterministic = false;
};

/// Bytes of element `index` of rank `rank`'s input: a whole number from -3 to 3 (0 to 3 where there is no sign).
void write_element(DataType type, std::byte* at, int rank, std::size_t index);

/// Runs the case on this rank; throws std::runtime_error that describes the first wrong element.
void check_case(Communicator& comm, const Case& c);

std::string describe(const Case& c);

/// A few calls, large and small.
inline void use_all(Communicator& comm) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{50'000}}) {
    for (const Collective collective : {Collective::all_reduce, Collective::all_to_all, Collective::gather}) {
      Case c;
      c.collective = collective;
      c.count = count;
      check_case(comm, c);
    }
  }
}

}  // namespace tutti::testing
