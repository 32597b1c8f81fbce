#include "training/tensor/slices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <vector>

#include "training/abort.h"
#include "training/streams.h"
#include "training/tensor/regions.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

/// A whole, seen as [before, groups, ranks, part, after].
struct Extents {
  std::int64_t before = 1, groups = 1, ranks = 1, part = 0, after = 1;
};

Extents extents_of(at::IntArrayRef sizes, std::int64_t along, const Cut& cut, std::int64_t ranks) {
  Extents extents{1, cut.groups, ranks, along / (cut.groups * ranks), 1};
  for (std::int64_t d = 0; d < cut.dim; ++d) extents.before *= sizes[static_cast<std::size_t>(d)];
  for (std::size_t d = static_cast<std::size_t>(cut.dim) + 1; d < sizes.size(); ++d) extents.after *= sizes[d];
  return extents;
}

std::vector<std::int64_t> sizes_with(at::IntArrayRef sizes, std::int64_t dim, std::int64_t extent) {
  std::vector<std::int64_t> result = sizes.vec();
  result[static_cast<std::size_t>(dim)] = extent;
  return result;
}

}  // namespace

torch::Tensor take_slice(const torch::Tensor& whole, const Cut& cut, const Communicator& comm,
                         const std::string& layer) {
  Communicator ranks = comm;
  const std::int64_t size = ranks.size();
  const std::int64_t extent = whole.size(cut.dim);
  const std::int64_t padding = cut.extent > 0 ? (size - extent % size) % size : 0;
  if ((extent + padding) % (size * cut.groups) != 0) {
    fail_on_all(comm, fmt::format("{}: dimension {} of sizes [{}]{} cannot be divided by {} ranks", layer, cut.dim,
                                  fmt::join(whole.sizes(), ", "),
                                  cut.groups > 1 ? fmt::format(", {} groups in it,", cut.groups) : "", size));
  }
  const DataType type = data_type_of(whole, comm, layer);
  const torch::NoGradGuard no_grad;
  const Extents e = extents_of(whole.sizes(), extent + padding, cut, size);
  torch::Tensor packed;  // on rank 0: all slices, back to back
  if (ranks.rank() == 0) {
    packed = whole.detach().contiguous();
    if (padding > 0) {
      packed =
          torch::cat({packed, torch::zeros(sizes_with(whole.sizes(), cut.dim, padding), packed.options())}, cut.dim);
    }
    packed = packed.view({e.before, e.groups, e.ranks, e.part, e.after}).permute({2, 0, 1, 3, 4});
    packed = packed.contiguous();
  }
  torch::Tensor slice =
      torch::empty(sizes_with(whole.sizes(), cut.dim, (extent + padding) / size), whole.options().requires_grad(false));
  ranks.scatter(packed.defined() ? packed.data_ptr() : nullptr, slice.data_ptr(), count_of(slice), type, 0,
                in_stream_of(slice));
  return slice;
}

torch::Tensor join_slices(const torch::Tensor& slice, const Cut& cut, const Communicator& comm,
                          const std::string& layer) {
  Communicator ranks = comm;
  const DataType type = data_type_of(slice, comm, layer);
  const torch::NoGradGuard no_grad;
  const torch::Tensor in = slice.detach().contiguous();
  const std::int64_t extent = slice.size(cut.dim) * ranks.size();
  const Extents e = extents_of(slice.sizes(), extent, cut, ranks.size());
  const torch::Tensor packed =
      torch::empty({e.ranks, e.before, e.groups, e.part, e.after}, in.options().requires_grad(false));
  ranks.all_gather(in.data_ptr(), packed.data_ptr(), count_of(in), type, in_stream_of(in));
  const torch::Tensor whole =
      packed.permute({1, 2, 0, 3, 4}).contiguous().view(sizes_with(slice.sizes(), cut.dim, extent));
  return cut.extent > 0 && cut.extent < extent ? whole.narrow(cut.dim, 0, cut.extent).contiguous() : whole;
}

torch::Tensor take_copy(const torch::Tensor& whole, const Communicator& comm, const std::string& layer) {
  Communicator ranks = comm;
  const DataType type = data_type_of(whole, comm, layer);
  const torch::Tensor copy = whole.detach().clone(at::MemoryFormat::Contiguous);
  ranks.broadcast(copy.data_ptr(), copy.data_ptr(), count_of(copy), type, 0, in_stream_of(copy));
  return copy;
}

}  // namespace tutti::training
