#include "training/tensor/cross_entropy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "training/abort.h"
#include "training/streams.h"
#include "training/tensor/regions.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCrossEntropy = "vocabulary_parallel_cross_entropy";

/// Sum over tokens of -log softmax(logits)[target]. `mine`: the target is one of this rank's entries; `local`: which (0
/// where it is not); `counts`: it is not ignored; `valid`: how many of this rank's entries are no padding.
struct CrossEntropySum : torch::autograd::Function<CrossEntropySum> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& logits, const torch::Tensor& local,
                               const torch::Tensor& mine, const torch::Tensor& counts, std::int64_t valid,
                               Communicator comm) {
    const torch::ScalarType wide = logits.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    // The floor is for ranks all of whose entries are impossible (-inf): their sum is then 0 rather than not a number.
    const double floor =
        wide == torch::kFloat64 ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
    const auto options = logits.options().dtype(wide).requires_grad(false);
    torch::Tensor largest = torch::full({logits.size(0)}, floor, options), sum = torch::zeros_like(largest);
    if (valid > 0) {
      const torch::Tensor own = logits.narrow(1, 0, valid);
      largest = own.amax(1).to(wide).clamp_min(floor);
      sum = (own.to(wide) - largest.unsqueeze(1)).exp_().sum(1);
    }
    const torch::Tensor target =
        logits.gather(1, local.unsqueeze(1)).squeeze(1).to(wide).masked_fill(mine.logical_not(), 0);
    const torch::Tensor own = torch::stack({largest, sum, target});
    torch::Tensor all = own.unsqueeze(0);
    if (comm.size() > 1) {
      all = torch::empty({comm.size(), 3, logits.size(0)}, own.options());
      comm.all_gather(own.data_ptr(), all.data_ptr(), count_of(own),
                      wide == torch::kFloat64 ? DataType::f64 : DataType::f32, in_stream_of(own));
    }
    const torch::Tensor top = all.select(1, 0).amax(0);
    const torch::Tensor total = (all.select(1, 1) * (all.select(1, 0) - top).exp_()).sum(0);
    context->save_for_backward({logits, local, mine, counts, top, total});
    context->saved_data["valid"] = valid;
    return (total.log() - (all.select(1, 2).sum(0) - top)).masked_select(counts).sum();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor &logits = saved[0], &local = saved[1], &mine = saved[2], &counts = saved[3];
    const torch::Tensor &top = saved[4], &total = saved[5];
    torch::Tensor result = (logits.to(top.scalar_type()) - top.unsqueeze(1)).exp_().div_(total.unsqueeze(1));
    result.scatter_add_(1, local.unsqueeze(1), mine.to(result.scalar_type()).neg().unsqueeze(1));
    result.mul_(gradients[0]).masked_fill_(counts.logical_not().unsqueeze(1), 0);  // an ignored row may hold anything
    result.slice(1, context->saved_data["valid"].toInt()).zero_();
    return {result.to(logits.scalar_type()), {}, {}, {}, {}, {}};
  }
};

}  // namespace

torch::Tensor vocabulary_parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets,
                                                const Communicator& comm, const CrossEntropyOptions& options) {
  (void)data_type_of(logits, comm, kCrossEntropy);
  if (targets.scalar_type() != torch::kInt64 || logits.dim() != targets.dim() + 1 || logits.size(-1) == 0 ||
      logits.sizes().slice(0, static_cast<std::size_t>(targets.dim())) != targets.sizes()) {
    fail_on_all(comm, fmt::format("{}: logits of sizes [{}] and targets of sizes [{}] and type {} do not fit; expected "
                                  "[..., vocabulary / ranks] and [...] of type Long",
                                  kCrossEntropy, fmt::join(logits.sizes(), ", "), fmt::join(targets.sizes(), ", "),
                                  c10::toString(targets.scalar_type())));
  }
  const std::int64_t part = logits.size(-1);
  const std::int64_t vocabulary = options.vocabulary > 0 ? options.vocabulary : part * comm.size();
  if (vocabulary > part * comm.size()) {
    fail_on_all(comm, fmt::format("{}: {} entries on each of {} ranks are fewer than the vocabulary of {}",
                                  kCrossEntropy, part, comm.size(), vocabulary));
  }
  const torch::Tensor flat = targets.reshape(-1);
  const torch::Tensor counts = flat != options.ignore_index;
  const torch::Tensor bad = counts & ((flat < 0) | (flat >= vocabulary));
  if (bad.any().item<bool>()) {
    const auto index = bad.to(torch::kInt64).argmax().item<std::int64_t>();
    fail_on_all(comm,
                fmt::format("{}: target {} of token {} is neither in a vocabulary of {} nor ignore_index {}",
                            kCrossEntropy, flat[index].item<std::int64_t>(), index, vocabulary, options.ignore_index));
  }
  const torch::Tensor shifted = flat - comm.rank() * part;
  const torch::Tensor mine = counts & (shifted >= 0) & (shifted < part);
  const torch::Tensor local = shifted.masked_fill(mine.logical_not(), 0);
  const std::int64_t valid = std::clamp<std::int64_t>(vocabulary - comm.rank() * part, 0, part);
  const torch::Tensor sum = CrossEntropySum::apply(logits.reshape({-1, part}), local, mine, counts, valid, comm);
  return sum / options.divisor.value_or(counts.sum().item<double>());
}

}  // namespace tutti::training
