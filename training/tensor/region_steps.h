// Finds ranks of a tensor parallel model in different passes. A region that one rank leaves out makes it meet the
// others' next one; where the shapes are the same, nothing would tell them apart.
//
//   RegionSteps steps(comm);      // a member of the model
//   steps.begin();                // first thing in forward
//
// How: each forward begins with an exchange of its number, whose calls fit no region's. A rank that is still in a
//   region meets it there, and both ranks say where they were.
// Bytes: 8 (n-1) for each forward. Threads: as tutti::Communicator.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "training/mismatch.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

class RegionSteps {
 public:
  explicit RegionSteps(Communicator comm);
  /// Collective. Errors: mismatch, which names the ranks and where this one is.
  void begin();

 private:
  Communicator comm_;
  std::uint64_t passes_ = 0;
  std::vector<std::uint64_t> of_ranks_;
};

/// Runs `step`; a mismatch of calls that it throws says where this rank was.
template <class Step>
auto told_where(const std::string& where, Step&& step) {
  return with_words_of_mismatch([&](const std::string& text) { return text + "; this rank was " + where; },
                                std::forward<Step>(step));
}

}  // namespace tutti::training
