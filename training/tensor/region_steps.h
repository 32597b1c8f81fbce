// Finds ranks of a tensor parallel model in different passes. A region that one rank leaves out makes it meet the
// others' next one; where the shapes are the same, nothing would tell them apart.
//
//   RegionSteps steps(comm);      // a member of the model
//   steps.begin(*this);           // first thing in forward
//
// How: each forward begins with an exchange of a hash of its number and of the model's form, whose calls fit no
//   region's. A rank that is still in a region meets it there, and both ranks say where they were. So parameters are
//   frozen, typed, shaped and tied alike on all ranks, or the first that is not is named on all.
// Limits: passes are counted, not steps. A forward and backward more on one rank is paired with the others' next step,
//   and found at the end, when that rank is alone.
// Bytes: 8 (n-1) for each forward. Threads: as tutti::Communicator.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "training/mismatch.h"
#include "training/model_form.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

class RegionSteps {
 public:
  explicit RegionSteps(Communicator comm);
  /// Collective. Errors: mismatch, which names the ranks and where this one is.
  void begin(const torch::nn::Module& model);

 private:
  [[noreturn]] void fail(const std::vector<ParameterForm>& forms);
  std::vector<std::uint64_t> of_ranks(const std::vector<std::uint64_t>& mine);

  Communicator comm_;
  std::uint64_t passes_ = 0;
};

/// Runs `step`; a mismatch of calls that it throws says where this rank was.
template <class Step>
auto told_where(const std::string& where, Step&& step) {
  return with_words_of_mismatch([&](const std::string& text) { return text + "; this rank was " + where; },
                                std::forward<Step>(step));
}

}  // namespace tutti::training
