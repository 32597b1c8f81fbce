#include "training/fsdp/sharded_parameter.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "training/fsdp/storage_access.h"
#include "training/streams.h"

namespace tutti::training {
namespace {

/// A tensor of its own in another's memory, which it keeps. Not a view: torch::optim's zero_grad(false) refuses views.
torch::Tensor alias(const torch::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes) {
  auto* data = static_cast<std::byte*>(memory.data_ptr()) + offset * static_cast<std::int64_t>(memory.element_size());
  return torch::from_blob(
      data, sizes, [memory](void*) {}, torch::dtype(memory.scalar_type()).device(memory.device()));
}

}  // namespace

RowLayout::RowLayout(at::IntArrayRef sizes, int rank, int ranks) : ranks(ranks) {
  rows = sizes.empty() ? 1 : sizes[0];
  for (std::size_t i = 1; i < sizes.size(); ++i) row_elements *= sizes[i];
  share = (rows + ranks - 1) / ranks;
  first = std::min(rows, share * rank);
  own = std::min(rows - first, share);
}

ShardedParameter::ShardedParameter(NamedTensor item, int rank, int ranks, const Options& options)
    : name_(std::move(item.name)),
      layout_(item.tensor.sizes(), rank, ranks),
      full_(std::move(item.tensor)),
      trained_(full_.requires_grad()),
      options_(options),
      lies_in_full_(options.keep_full && !options.compute_device && options.compute_type == full_.scalar_type()) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor before = full_.detach().contiguous();
  const auto kind =
      before.options().dtype(options.compute_type).device(options.compute_device.value_or(before.device()));
  full_.set_data(torch::empty_strided(before.sizes(), before.strides(), kind));
  storage_ = full_.storage();
  free_memory();
  if (options.keep_full) take_memory();
  if (lies_in_full_) {
    flat_.zero_();
    padded_shard_ = alias(flat_, rank * layout_.piece(), {layout_.piece()});
    alias(flat_, 0, before.sizes()).copy_(before);
  } else {
    padded_shard_ = empty_communicable({layout_.piece()}, before.scalar_type(), before.device());
    padded_shard_.zero_();
    const std::int64_t elements = layout_.own * layout_.row_elements;
    padded_shard_.narrow(0, 0, elements)
        .copy_(before.view(-1).narrow(0, layout_.first * layout_.row_elements, elements));
  }
  shard_ = rows_of(padded_shard_);
  shard_.set_requires_grad(trained_);
}

const char* ShardedParameter::change() const {
  if (full_.storage().unsafeGetStorageImpl() != storage()) return "was given other memory";
  if (shard_.numel() > 0 && shard_.data_ptr() != padded_shard_.data_ptr()) {
    return "has a shard that was given other memory";
  }
  if (shard_.requires_grad() != trained_)
    return trained_ ? "has a shard that was frozen" : "has a shard that was unfrozen";
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(shard_);
  return meta == nullptr || meta->hooks_.empty() ? nullptr
                                                 : "has a shard that was given a hook, which backward does not run";
}

torch::Tensor ShardedParameter::rows_of(const torch::Tensor& padded) const {
  std::vector<std::int64_t> sizes = full_.sizes().vec();
  if (sizes.empty()) sizes = {1};
  sizes[0] = layout_.own;
  return alias(padded, 0, sizes);
}

std::size_t ShardedParameter::full_bytes() const {
  return static_cast<std::size_t>(layout_.piece() * layout_.ranks) * full_.element_size();
}
std::size_t ShardedParameter::shard_bytes() const {
  return static_cast<std::size_t>(layout_.piece()) * shard_.element_size();
}
std::size_t ShardedParameter::gradient_bytes() const {
  return shard_.grad().defined() && gradient_memory_.defined() ? gradient_memory_.nbytes() : 0;
}

// The storage object stays the same, so that whatever shares it (views, what autograd saved) shares what is in it.
void ShardedParameter::take_memory() {
  const std::int64_t elements = layout_.piece() * layout_.ranks;
  flat_ = options_.compute_device ? torch::empty({elements}, full_.options().requires_grad(false))
                                  : empty_communicable({elements}, full_.scalar_type(), full_.device());
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  allow_access(*storage);
  auto* keep = new torch::Tensor(flat_);
  storage->set_data_ptr_noswap(c10::DataPtr(
      flat_.data_ptr(), keep, [](void* tensor) { delete static_cast<torch::Tensor*>(tensor); }, flat_.device()));
  storage->set_nbytes(flat_.nbytes());
}

void ShardedParameter::free_memory() {
  flat_.reset();
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, full_.device()));
  storage->set_nbytes(full_bytes());  // so that an operator gets as far as the pointer, whose error says what to do
  forbid_access(*storage, "parameter '" + name_ +
                              "' is sharded: outside of forward and backward, and on other threads than the one that "
                              "made the FullyShardedDataParallel, read and write it under summon_full_parameters()");
}

void ShardedParameter::add_gradient(const torch::Tensor& padded) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = shard_.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(rows_of(padded));
  } else {
    gradient_memory_ = padded;
    gradient = rows_of(padded);
  }
}

void ShardedParameter::add_gradient_inside(const torch::Tensor& full_gradient, const torch::Tensor& padded) {
  torch::Tensor& gradient = shard_.mutable_grad();
  if (gradient.defined()) return add_gradient(padded);
  const torch::NoGradGuard no_grad;
  gradient_memory_ = full_gradient;
  gradient = alias(full_gradient, layout_.first * layout_.row_elements, shard_.sizes());
  if (gradient.data_ptr() != padded.data_ptr()) gradient.copy_(rows_of(padded));
}

void ShardedParameter::drop_gradient() {
  shard_.mutable_grad().reset();
  gradient_memory_.reset();
}

}  // namespace tutti::training
