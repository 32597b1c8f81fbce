// Buckets: gradients that are reduced together, as one piece of memory. Pure planning; nothing here touches memory.
//
// The plan is made once and never changes, so that every rank has the same one and a bucket's order of elements (hence
// the bits of a reduction) does not depend on timing. Parameters are taken in reverse order of registration, which is
// about the order in which backward produces their gradients. The first bucket is small so that communication starts
// early (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/types.hpp"

namespace tutti::training {

struct BucketParameter {
  std::size_t elements = 0;
  DataType type = DataType::f32;
};

/// The place of one parameter's gradient in its bucket.
struct BucketSlice {
  std::size_t parameter = 0;  // index into what plan_buckets() was given
  std::size_t offset = 0;     // elements from the start of the bucket
  std::size_t elements = 0;
};

struct Bucket {
  DataType type = DataType::f32;
  std::size_t elements = 0;
  std::vector<BucketSlice> slices;  // back to back: no padding, so bytes on the wire are bytes of gradients
  std::size_t bytes() const { return elements * size_of(type); }
};

/// Buckets hold one type each and are listed in the order in which they fill. A bucket is closed by the parameter with
/// which it reaches its cap in bytes (so a large parameter may pass the cap); the first bucket has a cap of its own.
/// Every parameter with at least one element is in exactly one bucket.
std::vector<Bucket> plan_buckets(std::span<const BucketParameter> parameters, std::size_t first_cap_bytes,
                                 std::size_t cap_bytes);

}  // namespace tutti::training
