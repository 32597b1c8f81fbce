#include "training/tensor/region_steps.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "training/hash.h"

namespace tutti::training {
namespace {

/// The first rank whose entry at `place` is not rank 0's; 0: none.
std::size_t differing(const std::vector<std::uint64_t>& of_ranks, std::size_t place, std::size_t count) {
  for (std::size_t rank = 1; rank < of_ranks.size() / count; ++rank) {
    if (of_ranks[rank * count + place] != of_ranks[place]) return rank;
  }
  return 0;
}

}  // namespace

RegionSteps::RegionSteps(Communicator comm) : comm_(std::move(comm)) {}

std::vector<std::uint64_t> RegionSteps::of_ranks(const std::vector<std::uint64_t>& mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(comm_.size()));
  told_where(fmt::format("at the beginning of forward pass {}", passes_),
             [&] { comm_.all_gather(mine.data(), all.data(), mine.size(), DataType::u64); });
  return all;
}

void RegionSteps::begin(const torch::nn::Module& model) {
  ++passes_;
  if (comm_.size() == 1) return;
  const std::vector<ParameterForm> forms = forms_of(model);
  std::vector<std::uint64_t> words{passes_};
  for (const ParameterForm& form : forms) words.push_back(form.hash);
  const std::uint64_t word = ByteHash::of(words.data(), words.size() * sizeof(words[0]));
  if (differing(of_ranks({word}), 0, 1) != 0) fail(forms);
}

// All ranks are here: each has seen that one differs.
void RegionSteps::fail(const std::vector<ParameterForm>& forms) {
  const auto mismatch = [](const std::string& what) { throw Error(Code::mismatch, what); };
  const std::vector<std::uint64_t> counts = of_ranks({passes_, forms.size()});
  if (const std::size_t rank = differing(counts, 0, 2); rank != 0) {
    mismatch(fmt::format("rank {} begins forward pass {} of the tensor parallel model, rank 0 pass {}", rank,
                         counts[2 * rank], counts[0]));
  }
  if (const std::size_t rank = differing(counts, 1, 2); rank != 0) {
    mismatch(fmt::format("the tensor parallel model has {} parameters on rank {} and {} on rank 0",
                         counts[2 * rank + 1], rank, counts[1]));
  }
  std::vector<std::uint64_t> mine;
  for (const ParameterForm& form : forms) mine.push_back(form.hash);
  const std::vector<std::uint64_t> all = of_ranks(mine);
  std::size_t place = 0;
  while (differing(all, place, mine.size()) == 0) ++place;
  mismatch(
      fmt::format("'{}' is not alike on rank {} and on rank 0; expected it to be frozen, typed, shaped and tied as "
                  "there: make such a change on all ranks",
                  forms[place].name, differing(all, place, mine.size())));
}

}  // namespace tutti::training
