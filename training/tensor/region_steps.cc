#include "training/tensor/region_steps.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace tutti::training {

RegionSteps::RegionSteps(Communicator comm)
    : comm_(std::move(comm)), of_ranks_(static_cast<std::size_t>(comm_.size())) {}

void RegionSteps::begin() {
  ++passes_;
  if (comm_.size() == 1) return;
  told_where(fmt::format("at the beginning of forward pass {}", passes_),
             [this] { comm_.all_gather(&passes_, of_ranks_.data(), 1, DataType::u64); });
  for (std::size_t rank = 1; rank < of_ranks_.size(); ++rank) {
    if (of_ranks_[rank] == of_ranks_[0]) continue;
    throw Error(Code::mismatch,
                fmt::format("rank {} begins forward pass {} of the tensor parallel model, rank 0 pass {}", rank,
                            of_ranks_[rank], of_ranks_[0]));
  }
}

}  // namespace tutti::training
