// Plants one mistake in a plan, to show that the proof finds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {

enum class Mutation : std::uint8_t {
  drop_wait,
  drop_signal,
  drop_pair,  // a signal together with the wait that takes it, data or credit
  drop_open,
  drop_data,    // a put, copy or reduce
  swap_pieces,  // the first destinations of two neighbouring puts, copies or reduces
  shift_range,  // one range, by one piece or slot
  change_peer,  // of a signal, wait, open or put
  swap_steps,   // two neighbouring steps of a lane
  flip_last,    // whether avg divides
};
inline constexpr int kMutations = 10;
const char* name_of(Mutation mutation);

/// A place where a mistake can be planted.
struct Mutant {
  Mutation mutation;
  int rank;
  int lane;
  int step;
  int part = 0;  // shift_range: which range, sources first; swap_pieces: the other step
};

/// All places of all kinds in a plan.
std::vector<Mutant> mutants_of(const Plan& plan);

/// The plan with the mistake in it.
Plan mutate(const Plan& plan, const Mutant& mutant);

/// "drop_wait at rank 1, lane 0, step 3 (wait 0 data)".
std::string describe(const Plan& plan, const Mutant& mutant);

}  // namespace tutti::plan
