#include "training/fsdp/shard_init.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "training/fsdp/sharded_parameter.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

/// Operators that write every element of their first argument and read none of it.
bool fills(const c10::OperatorHandle& op) {
  constexpr std::array<std::string_view, 10> kNames = {
      "aten::normal_", "aten::uniform_", "aten::zero_",      "aten::fill_",   "aten::random_",
      "aten::copy_",   "aten::eye_",     "aten::bernoulli_", "aten::cauchy_", "aten::log_normal_"};
  return std::find(kNames.begin(), kNames.end(), op.operator_name().name) != kNames.end();
}

const void* storage_of(const torch::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

bool is_all_of_its_storage(const torch::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.nbytes() == tensor.storage().nbytes();
}

/// Whole pages of [begin, end) become zero, without memory.
void give_back(std::byte* begin, std::byte* end) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
  const std::uintptr_t last = reinterpret_cast<std::uintptr_t>(end) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

ShardInit::ShardInit(int rank, int ranks)
    : rank_(rank),
      ranks_(ranks),
      watch_([this](const c10::OperatorHandle& op, torch::jit::Stack& arguments) { before(op, arguments); }) {}

ShardInit::~ShardInit() { cut(); }

void ShardInit::before(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const std::size_t count = op.schema().arguments().size();
  const bool is_fill = count > 0 && fills(op);
  const torch::Tensor target = is_fill ? arguments[arguments.size() - count].toTensor() : torch::Tensor();
  bool takes_filled = false;
  for_each_tensor(arguments, count, [&](const torch::Tensor& tensor, std::size_t) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    takes_filled = takes_filled || (filled_.defined() && storage_of(tensor) == storage_of(filled_));
    if (cut_.count(storage_of(tensor)) == 0 || (tensor.is_same(target) && is_all_of_its_storage(tensor))) return;
    throw Error(
        Code::invalid_argument,
        fmt::format("ShardInit: {} takes a parameter of shape {} of which rank {} has only its own rows by now; "
                    "initialise it in one go, or make the model without ShardInit",
                    op.operator_name().name, c10::str(tensor.sizes()), rank_));
  });
  if (!takes_filled) cut();
  // A view's rows are not the parameter's, and what is no parameter is needed whole.
  const bool is_parameter = target.defined() && target.is_leaf() && target.requires_grad() && !target.is_view();
  if (!is_parameter || !target.device().is_cpu() || target.nbytes() < kLeastBytes) return;
  if (!is_all_of_its_storage(target)) return;
  cut_.erase(storage_of(target));
  filled_ = target;
}

void ShardInit::cut() {
  if (!filled_.defined()) return;
  const RowLayout layout(filled_.sizes(), rank_, ranks_);
  auto* data = static_cast<std::byte*>(filled_.data_ptr());
  const auto bytes = static_cast<std::int64_t>(filled_.element_size());
  const std::int64_t first = layout.first * layout.row_elements * bytes;
  give_back(data, data + first);
  give_back(data + first + layout.own * layout.row_elements * bytes, data + filled_.nbytes());
  cut_.emplace(storage_of(filled_), filled_);
  filled_.reset();
}

}  // namespace tutti::training
