#include "training/ddp/bucket.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tutti::training {

std::vector<Bucket> plan_buckets(std::span<const BucketParameter> parameters, std::size_t first_cap_bytes,
                                 std::size_t cap_bytes) {
  std::vector<Bucket> closed;
  std::array<Bucket, kDataTypes> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const BucketParameter& parameter = parameters[i];
    if (parameter.elements == 0) continue;
    Bucket& bucket = open[static_cast<std::size_t>(parameter.type)];
    bucket.type = parameter.type;
    bucket.slices.push_back({i, bucket.elements, parameter.elements});
    bucket.elements += parameter.elements;
    const std::size_t cap = closed.empty() ? first_cap_bytes : cap_bytes;
    if (bucket.bytes() >= cap) closed.push_back(std::exchange(bucket, {}));
  }
  // What is left over, one bucket per type: the one whose last parameter comes first in backward goes first.
  std::vector<Bucket> left;
  for (Bucket& bucket : open) {
    if (!bucket.slices.empty()) left.push_back(std::move(bucket));
  }
  std::sort(left.begin(), left.end(),
            [](const Bucket& a, const Bucket& b) { return a.slices.back().parameter > b.slices.back().parameter; });
  for (Bucket& bucket : left) closed.push_back(std::move(bucket));
  return closed;
}

}  // namespace tutti::training
