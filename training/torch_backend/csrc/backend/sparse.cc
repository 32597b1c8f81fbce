// all_reduce of sparse tensors (DDP's gradients of sparse embeddings): every rank gets all ranks' entries and adds
// them.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/tensors/allocator.h"
#include "csrc/tensors/arguments.h"

namespace tutti_torch {

using tutti::Collective;

namespace {

constexpr std::int64_t kMostDimensions = 61;

/// The form of a sparse tensor, which must be the same on all ranks, and then the number of entries.
struct Layout {
  std::int64_t sparse_dimensions = 0;
  std::int64_t dimensions = 0;
  std::array<std::int64_t, kMostDimensions> sizes{};
  std::int64_t entries = 0;

  bool fits(const Layout& other) const {
    return sparse_dimensions == other.sparse_dimensions && dimensions == other.dimensions && sizes == other.sizes;
  }
};
static_assert(sizeof(Layout) == 64 * sizeof(std::int64_t));

Layout layout_of(const at::Tensor& tensor, const Caller& caller) {
  TUTTI_TORCH_EXPECT(tensor.dim() <= kMostDimensions, caller, "a sparse tensor has ", tensor.dim(),
                     " dimensions; expected at most ", kMostDimensions);
  Layout layout{.sparse_dimensions = tensor.sparse_dim(), .dimensions = tensor.dim(), .entries = tensor._nnz()};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), layout.sizes.begin());
  return layout;
}

/// Adds broadcasts that give every rank each rank's rows, one behind the other. `rows`: how many each rank has.
at::Tensor add_gather(std::vector<Operation>& operations, const at::Tensor& own, const std::vector<std::int64_t>& rows,
                      int rank) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const at::Tensor all = registered_empty(sizes, own.scalar_type());
  const Elements elements = elements_for_moving(own.scalar_type());
  std::int64_t row = 0;
  for (std::size_t root = 0; root < rows.size(); ++root) {
    const at::Tensor part = all.narrow(0, row, rows[root]);
    row += rows[root];
    const void* const send = static_cast<int>(root) == rank ? own.const_data_ptr() : nullptr;
    operations.push_back({.kind = Collective::broadcast,
                          .send = send,
                          .recv = part.mutable_data_ptr(),
                          .count = elements_in(part) * elements.per_element,
                          .type = elements.type,
                          .root = static_cast<int>(root)});
  }
  return all;
}

}  // namespace

// Done when it returns, also where a Work was asked for that is not: what the ranks exchange depends on what they have
// exchanged before, and no other call of theirs may come between.
TuttiBackend::WorkPtr TuttiBackend::allreduce_of_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Call call = call_of(c10d::OpType::_ALLREDUCE_SPARSE, "tutti:sparse_all_reduce");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() && tensor.layout() == c10::kSparse, call.caller.text(),
                              " with a tensor of layout ", tensor.layout(), " on ", tensor.device(),
                              "; backend tutti has dense tensors and COO tensors on the host");
  TUTTI_TORCH_EXPECT(op.op_ == c10d::ReduceOp::SUM, call.caller, "sparse tensors can only be summed");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor input = tensor.coalesce();
  const Layout own = layout_of(input, call.caller);
  std::vector<Layout> all(static_cast<std::size_t>(size_));
  (void)collectives_->wait_idle(Clock::time_point::max());
  translated([&] {
    collectives_->run(std::array{Operation{.kind = Collective::all_gather,
                                           .send = &own,
                                           .recv = all.data(),
                                           .count = sizeof(Layout) / sizeof(std::int64_t),
                                           .type = tutti::DataType::i64}});
  });
  std::vector<std::int64_t> entries;
  for (int rank = 0; rank < size_; ++rank) {
    const Layout& other = all[static_cast<std::size_t>(rank)];
    TUTTI_TORCH_EXPECT(own.fits(other), call.caller, "its sparse tensor differs from that of rank ", rank,
                       "; expected the same sizes and sparse dimensions");
    entries.push_back(other.entries);
  }
  std::vector<Operation> operations;
  const at::Tensor own_indices = input._indices().t().contiguous();  // one row per entry
  const at::Tensor own_values = input._values().contiguous();
  const at::Tensor indices = add_gather(operations, own_indices, entries, rank_);
  const at::Tensor values = add_gather(operations, own_values, entries, rank_);
  translated([&] { collectives_->run(operations); });
  tensor.copy_(at::_sparse_coo_tensor_unsafe(indices.t(), values, tensor.sizes()).coalesce());
  auto work =
      c10::make_intrusive<TuttiWork>(call.type, call.title, call.caller, ++sequence_, Tensors{tensor}, collectives_);
  work->complete(nullptr);
  return work;
}

}  // namespace tutti_torch
