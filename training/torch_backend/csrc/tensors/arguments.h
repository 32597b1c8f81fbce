// Checks of arguments that several collectives share. Errors: ValueError, one sentence that names the caller.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/tensors/tensors.h"

namespace tutti_torch {

inline std::size_t elements_in(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

/// torch passes a list where one tensor is meant.
inline const at::Tensor& only(at::TensorList tensors, const Caller& caller) {
  TUTTI_TORCH_EXPECT(tensors.size() == 1, caller, "it was given ", tensors.size(), " tensors; expected 1");
  return tensors.front();
}

inline const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists, const Caller& caller) {
  TUTTI_TORCH_EXPECT(lists.size() == 1, caller, "it was given ", lists.size(), " lists of tensors; expected 1");
  return lists.front();
}

inline void expect_one_per_rank(at::TensorList tensors, int size, at::ScalarType type, const char* name,
                                const Caller& caller) {
  TUTTI_TORCH_EXPECT(tensors.size() == static_cast<std::size_t>(size), caller, "the ", name, " is a list of ",
                     tensors.size(), " tensors; expected ", size, ", one per rank");
  expect_served(tensors, type, caller);
}

inline bool all_have(at::TensorList tensors, std::int64_t elements) {
  return std::all_of(tensors.begin(), tensors.end(), [=](const at::Tensor& t) { return t.numel() == elements; });
}

inline void expect_all_have(at::TensorList tensors, std::int64_t elements, const char* name, const Caller& caller) {
  for (const at::Tensor& tensor : tensors) {
    TUTTI_TORCH_EXPECT(tensor.numel() == elements, caller, "one tensor of the ", name, " list has ", tensor.numel(),
                       " elements; expected ", elements, ", as the tensor of each rank");
  }
}

/// One after the other would be added into what another one has left.
inline void expect_apart(at::TensorList tensors, const Caller& caller) {
  struct Place {
    const char* begin;
    const char* end;
    std::size_t number;
  };
  std::vector<Place> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.numel() == 0 || tensor.layout() != c10::kStrided) continue;
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    places.push_back({begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size()), i});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < places.size(); ++i) {
    TUTTI_TORCH_EXPECT(
        places[i - 1].end <= places[i].begin, caller, "tensors ", std::min(places[i - 1].number, places[i].number),
        " and ", std::max(places[i - 1].number, places[i].number), " of the list overlap; expected each one once");
  }
}

inline void expect_as_many(at::TensorList outputs, at::TensorList inputs, const Caller& caller) {
  TUTTI_TORCH_EXPECT(outputs.size() == inputs.size(), caller, "it was given ", inputs.size(), " inputs and ",
                     outputs.size(), " outputs; expected as many");
}

/// `whole` holds one `block` per rank.
inline void expect_blocks(const at::Tensor& whole, const at::Tensor& block, int size, const char* name,
                          const Caller& caller) {
  TUTTI_TORCH_EXPECT(whole.scalar_type() == block.scalar_type(), caller, "the ", name, " is of ", whole.scalar_type(),
                     ", and what is a rank's part of it of ", block.scalar_type(), "; expected one type");
  TUTTI_TORCH_EXPECT(whole.numel() == block.numel() * size, caller, "the ", name, " has ", whole.numel(),
                     " elements; expected ", block.numel() * size, ", ", block.numel(), " for each of ", size,
                     " ranks");
}

inline int root_of(std::int64_t root, int size, const Caller& caller) {
  TUTTI_TORCH_EXPECT(root >= 0 && root < size, caller, "root is ", root, "; expected 0 to ", size - 1);
  return static_cast<int>(root);
}

}  // namespace tutti_torch
