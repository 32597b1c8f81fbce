#include "training/trainers/allocation_peak.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>

namespace tutti::training::allocation_peak_test {
namespace {

constexpr std::int64_t kElements = 4096;
constexpr std::size_t kBytes = kElements * sizeof(float);

TEST(AllocationPeak, IsTheMostThatWasAliveAtOnce) {
  const torch::Tensor before = torch::ones({kElements});
  AllocationPeak peak;
  EXPECT_EQ(peak.bytes(), 0u);
  { const torch::Tensor one = torch::empty({kElements}), two = torch::empty({kElements}); }
  const torch::Tensor three = torch::empty({kElements});
  EXPECT_EQ(peak.bytes(), 2 * kBytes);
}

TEST(AllocationPeak, DoesNotCountWhatWasThereBefore) {
  torch::Tensor before = torch::ones({kElements});
  AllocationPeak peak;
  before.reset();
  const torch::Tensor after = torch::empty({kElements});
  EXPECT_EQ(peak.bytes(), kBytes);
}

// relu keeps its output for backward; so does each of the three.
TEST(AllocationPeak, SeesWhatIsKeptForBackwardAndItsGradients) {
  torch::Tensor x = torch::ones({kElements}).requires_grad_();
  AllocationPeak peak;
  torch::Tensor y = torch::relu(torch::relu(torch::relu(x)));
  EXPECT_EQ(peak.bytes(), 3 * kBytes);
  y.backward(torch::ones({kElements}));
  EXPECT_GT(peak.bytes(), 4 * kBytes);
}

}  // namespace
}  // namespace tutti::training::allocation_peak_test
