#include "training/tensor/layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "training/abort.h"
#include "training/tensor/gathered_linear.h"
#include "training/tensor/regions.h"

namespace tutti::training {
namespace {

namespace nn = torch::nn;

ParallelOptions named(ParallelOptions options, const char* type) {
  if (options.name.empty()) options.name = type;
  return options;
}

/// The options of a part of a layer.
ParallelOptions part_of(const ParallelOptions& options, const char* part) {
  ParallelOptions result = options;
  result.name = options.name.empty() ? part : fmt::format("{}.{}", options.name, part);
  return result;
}

/// A parameter joined again, with its gradient if there is one.
torch::Tensor join(const torch::Tensor& parameter, const Cut& cut, const Communicator& comm, const std::string& layer) {
  torch::Tensor whole = join_slices(parameter, cut, comm, layer).set_requires_grad(parameter.requires_grad());
  if (parameter.grad().defined()) whole.mutable_grad() = join_slices(parameter.grad(), cut, comm, layer);
  return whole;
}

/// A parameter that every rank holds, without sharing memory.
torch::Tensor copy_of(const torch::Tensor& parameter) {
  torch::Tensor whole = parameter.detach().clone().set_requires_grad(parameter.requires_grad());
  if (parameter.grad().defined()) whole.mutable_grad() = parameter.grad().clone();
  return whole;
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const nn::Linear& whole, Communicator comm,
                                                   const ParallelOptions& options, std::int64_t groups)
    : comm_(std::move(comm)), options_(named(options, "ColumnParallelLinear")), cut_{0, groups} {
  weight = register_parameter("weight", take_slice(whole->weight, cut_, comm_, options_.name),
                              whole->weight.requires_grad());
  if (whole->bias.defined()) {
    bias = register_parameter("bias", take_slice(whole->bias, cut_, comm_, options_.name), whole->bias.requires_grad());
  }
}

torch::Tensor ColumnParallelLinearImpl::forward(const torch::Tensor& x) {
  const std::string& name = options_.name;
  if (options_.sequence_parallel && !options_.keep_gathered) return gathered_linear(x, weight, bias, comm_, name);
  const torch::Tensor whole =
      options_.sequence_parallel ? gather_sequence(x, comm_, name) : copy_to_region(x, comm_, name);
  return torch::linear(whole, weight, bias);
}

WholeParameters ColumnParallelLinearImpl::whole() const {
  WholeParameters result{join(weight, cut_, comm_, options_.name), {}};
  if (bias.defined()) result.bias = join(bias, cut_, comm_, options_.name);
  return result;
}

RowParallelLinearImpl::RowParallelLinearImpl(const nn::Linear& whole, Communicator comm, const ParallelOptions& options)
    : comm_(std::move(comm)), options_(named(options, "RowParallelLinear")) {
  weight = register_parameter("weight", take_slice(whole->weight, Cut{1}, comm_, options_.name),
                              whole->weight.requires_grad());
  if (whole->bias.defined()) {
    bias = register_parameter("bias", take_copy(whole->bias, comm_, options_.name), whole->bias.requires_grad());
  }
}

torch::Tensor RowParallelLinearImpl::forward(const torch::Tensor& x) {
  return forward(x, options_.sequence_parallel ? sum_gradients({bias}, comm_, options_.name)[0] : bias);
}

torch::Tensor RowParallelLinearImpl::forward(const torch::Tensor& x, const torch::Tensor& other_bias) {
  const torch::Tensor part = torch::linear(x, weight);
  const torch::Tensor sum = options_.sequence_parallel ? scatter_sequence(part, comm_, options_.name)
                                                       : reduce_from_region(part, comm_, options_.name);
  return other_bias.defined() ? sum + other_bias : sum;
}

WholeParameters RowParallelLinearImpl::whole() const {
  return {join(weight, Cut{1}, comm_, options_.name), bias.defined() ? copy_of(bias) : torch::Tensor()};
}

VocabularyParallelEmbeddingImpl::VocabularyParallelEmbeddingImpl(const nn::Embedding& whole, Communicator comm,
                                                                 const ParallelOptions& options)
    : comm_(std::move(comm)),
      options_(named(options, "VocabularyParallelEmbedding")),
      cut_{.dim = 0, .extent = whole->weight.size(0)} {
  const auto& wanted = whole->options;
  if (wanted.padding_idx() || wanted.max_norm() || wanted.scale_grad_by_freq() || wanted.sparse()) {
    fail_on_all(comm_,
                fmt::format("{}: padding_idx, max_norm, scale_grad_by_freq and sparse cannot be used", options_.name));
  }
  weight = register_parameter("weight", take_slice(whole->weight, cut_, comm_, options_.name),
                              whole->weight.requires_grad());
}

torch::Tensor VocabularyParallelEmbeddingImpl::forward(const torch::Tensor& indices) {
  const std::int64_t part = weight.size(0), vocabulary = cut_.extent;
  const torch::Tensor bad = (indices < 0) | (indices >= vocabulary);
  if (bad.any().item<bool>()) {
    fail_on_all(comm_, fmt::format("{}: index {} is not in a vocabulary of {}", options_.name,
                                   indices.masked_select(bad)[0].item<std::int64_t>(), vocabulary));
  }
  if (comm_.size() == 1) return torch::embedding(weight, indices);
  const torch::Tensor shifted = indices - comm_.rank() * part;
  const torch::Tensor others = (shifted < 0) | (shifted >= part);
  const torch::Tensor own =
      torch::embedding(weight, shifted.masked_fill(others, 0)).masked_fill_(others.unsqueeze(-1), 0);
  return options_.sequence_parallel ? scatter_sequence(own, comm_, options_.name)
                                    : reduce_from_region(own, comm_, options_.name);
}

WholeParameters VocabularyParallelEmbeddingImpl::whole() const {
  return {join(weight, cut_, comm_, options_.name), {}};
}

ParallelAttentionImpl::ParallelAttentionImpl(const nn::Linear& query_key_value_whole, const nn::Linear& out_whole,
                                             int heads, Communicator comm, const AttentionOptions& options,
                                             std::shared_ptr<RandomStates> random)
    : options_(options), heads_(heads / comm.size()), random_(std::move(random)) {
  options_.parallel = named(options.parallel, "ParallelAttention");
  const std::string& name = options_.parallel.name;
  if (heads % comm.size() != 0) {
    fail_on_all(comm, fmt::format("{}: {} heads cannot be divided by {} ranks", name, heads, comm.size()));
  }
  const std::int64_t width = out_whole->weight.size(1);
  if (query_key_value_whole->weight.size(0) != 3 * width || width % heads != 0) {
    fail_on_all(comm,
                fmt::format("{}: {} outputs of query_key_value, {} inputs of out and {} heads do not fit; expected "
                            "3 times the width, the width, and a divisor of it",
                            name, query_key_value_whole->weight.size(0), width, heads));
  }
  if (options_.dropout > 0 && random_ == nullptr) {
    fail_on_all(comm, fmt::format("{}: dropout {} needs random states", name, options_.dropout));
  }
  query_key_value = register_module(
      "query_key_value",
      ColumnParallelLinear(query_key_value_whole, comm, part_of(options_.parallel, "query_key_value"), 3));
  out = register_module("out", RowParallelLinear(out_whole, comm, part_of(options_.parallel, "out")));
}

torch::Tensor ParallelAttentionImpl::attend(const torch::Tensor& x) {
  const torch::Tensor all = query_key_value->forward(x);  // [time, rows, 3 * width / N]
  const std::int64_t time = all.size(0), rows = all.size(1), width = all.size(2) / 3;
  const std::vector<torch::Tensor> parts = all.split(width, 2);
  const auto by_head = [&](const torch::Tensor& part) {  // [rows, heads, time, width of a head]
    return part.view({time, rows, heads_, width / heads_}).permute({1, 2, 0, 3});
  };
  const auto attention = [&](double dropout) {
    return at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), /*attn_mask=*/{},
                                            dropout, options_.causal);
  };
  torch::Tensor y;
  if (is_training() && options_.dropout > 0) {
    const auto guard = random_->use(RandomRegion::inside);
    y = attention(options_.dropout);
  } else {
    y = attention(0);
  }
  return y.permute({2, 0, 1, 3}).reshape({time, rows, width});
}

torch::Tensor ParallelAttentionImpl::forward(const torch::Tensor& x) { return out->forward(attend(x)); }
torch::Tensor ParallelAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& out_bias) {
  return out->forward(attend(x), out_bias);
}

ParallelMlpImpl::ParallelMlpImpl(const nn::Linear& in_whole, const nn::Linear& out_whole, Communicator comm,
                                 const ParallelOptions& options) {
  in = register_module("in", ColumnParallelLinear(in_whole, comm, part_of(options, "in")));
  out = register_module("out", RowParallelLinear(out_whole, comm, part_of(options, "out")));
}

torch::Tensor ParallelMlpImpl::forward(const torch::Tensor& x) { return out->forward(torch::gelu(in->forward(x))); }
torch::Tensor ParallelMlpImpl::forward(const torch::Tensor& x, const torch::Tensor& out_bias) {
  return out->forward(torch::gelu(in->forward(x)), out_bias);
}

}  // namespace tutti::training
