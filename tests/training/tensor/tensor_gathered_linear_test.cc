// Claim 14, the memory of the sequence parallel form: what a rank keeps of its activations is 1/N.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/memory/pool.h"
#include "training/precision/autocast.h"
#include "training/tensor/gathered_linear.h"
#include "training/tensor/gpt_tensor.h"
#include "training/tensor/regions.h"

namespace tutti::training::tensor_gathered_linear_test {
namespace {

/// Counts what torch's tensors hold, in all threads. With the pool's own count: all memory of activations.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHeader, (bytes + 2 * kHeader - 1) / kHeader * kHeader));
    *reinterpret_cast<std::size_t*>(memory) = bytes;
    live += bytes;
    return {memory + kHeader, memory + kHeader, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  static inline std::atomic<std::size_t> live = 0;

 private:
  static constexpr std::size_t kHeader = 64;
  static void release(void* data) {
    if (data == nullptr) return;
    auto* memory = static_cast<std::byte*>(data) - kHeader;
    live -= *reinterpret_cast<std::size_t*>(memory);
    std::free(memory);
  }
};

class Counting {
 public:
  Counting() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(&allocator_, /*priority=*/1); }
  ~Counting() { c10::SetCPUAllocator(before_, /*priority=*/1); }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  static std::size_t live() { return CountingAllocator::live + RegisteredPool::process()->stats().live_bytes; }

 private:
  static inline CountingAllocator allocator_;
  c10::Allocator* before_;
};

class GatheredLinearOnRanks : public ::testing::TestWithParam<int> {};

// f64, sums of at most 48 products of values near 1: 48 * 2^-53 * 10.
TEST_P(GatheredLinearOnRanks, EqualsALinearLayerOfTheGatheredInput) {
  const int size = GetParam();
  for (const bool bias : {true, false}) {
    for (const bool frozen : {false, true}) {
      const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
        at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
        const auto random = [&](at::IntArrayRef sizes) { return torch::randn(sizes, generator, torch::kFloat64); };
        const torch::Tensor x = random({2, 3, 8}), weight = random({4, 8}), shift = random({4});
        const torch::Tensor factor = random({2 * size, 3, 4});
        std::vector<torch::Tensor> results[2];
        for (const bool again : {false, true}) {
          const torch::Tensor in = x.clone().requires_grad_(), w = weight.clone().requires_grad_(!frozen);
          const torch::Tensor b = bias ? shift.clone().requires_grad_() : torch::Tensor();
          const torch::Tensor y =
              again ? gathered_linear(in, w, b, comm) : torch::linear(gather_sequence(in, comm), w, b);
          (y * factor).sum().backward();
          results[again ? 1 : 0] = {y.detach(), in.grad(), w.grad(), bias ? b.grad() : torch::Tensor()};
        }
        for (std::size_t i = 0; i < 4; ++i) {
          ASSERT_EQ(results[0][i].defined(), results[1][i].defined()) << i;
          if (!results[0][i].defined()) continue;
          EXPECT_LT((results[0][i] - results[1][i]).abs().max().item<double>(), 48 * 10 * std::ldexp(1, -53)) << i;
        }
      });
      EXPECT_EQ(errors, nothing(size));
    }
  }
}

TEST_P(GatheredLinearOnRanks, SendsTheTypeOfAutocast) {
  const int size = GetParam();
  const auto errors = on_ranks(size, [&](int, Communicator comm) {
    const torch::Tensor x = torch::ones({4, 64}).requires_grad_(), weight = torch::ones({8, 64}).requires_grad_();
    const std::uint64_t before = comm.traffic().bytes_put;
    torch::Tensor y;
    {
      const Autocast autocast(torch::kBFloat16);
      y = gathered_linear(x, weight, {}, comm);
    }
    EXPECT_LE(comm.traffic().bytes_put - before, static_cast<std::size_t>(size - 1) * 4 * 64 * 2);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({4, 64}, 8.0 * size)));
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({8, 64}, 4.0 * size)));
  });
  EXPECT_EQ(errors, nothing(size));
}

TEST_P(GatheredLinearOnRanks, Claim14KeepsOneNthOfItsInput) {
  const int size = GetParam();
  const Counting counting;
  constexpr std::int64_t kTime = 24, kWidth = 256, kOut = 64;
  const auto errors = on_ranks(size, [&](int, Communicator comm) {
    const torch::Tensor x = torch::ones({kTime / size, kWidth}).requires_grad_();
    const torch::Tensor weight = torch::ones({kOut, kWidth}).requires_grad_();
    for (const bool keep : {false, true}) {
      comm.barrier();
      const std::size_t before = Counting::live();
      comm.barrier();
      const torch::Tensor y =
          keep ? torch::linear(gather_sequence(x, comm), weight) : gathered_linear(x, weight, {}, comm);
      comm.barrier();
      const std::size_t kept = Counting::live() - before;  // of all ranks; their parts of x are there anyway
      comm.barrier();
      const auto ranks = static_cast<std::size_t>(size);
      const std::size_t outputs = ranks * y.nbytes();
      EXPECT_EQ(kept, outputs + (keep && size > 1 ? ranks * ranks * x.nbytes() : 0u));
      y.sum().backward();
    }
  });
  EXPECT_EQ(errors, nothing(size));
}

// Of a block, all ranks together keep what one process does. A percent is for what is rounded up in the pool.
TEST_P(GatheredLinearOnRanks, Claim14ABlocksActivationsAreOneNth) {
  const int size = GetParam();
  const Counting counting;
  constexpr int kTime = 48, kRows = 4, kWidth = 96;
  GptConfig config;
  config.layers = 1;
  config.heads = 24;
  config.width = kWidth;
  config.context = kTime;
  torch::manual_seed(1);
  Gpt whole(config);
  const auto kept_by = [&](int ranks, bool keep_gathered) {  // all ranks together
    std::size_t kept = 0;
    const auto errors = on_ranks(ranks, [&](int rank, Communicator comm) {
      TensorParallelGpt model(whole, comm,
                              TensorParallelOptions{.sequence_parallel = true, .keep_gathered = keep_gathered});
      const torch::Tensor x = torch::ones({kTime / ranks, kRows, kWidth}).requires_grad_();
      (void)model->blocks()[0]->forward(x);  // whatever is allocated once
      comm.barrier();
      const std::size_t before = Counting::live();
      comm.barrier();
      const torch::Tensor y = model->blocks()[0]->forward(x);
      comm.barrier();
      if (rank == 0) kept = Counting::live() - before;
      comm.barrier();
    });
    EXPECT_EQ(errors, nothing(ranks));
    return static_cast<double>(kept);
  };
  const double alone = kept_by(1, false), cut = kept_by(size, false);
  EXPECT_NEAR(cut, alone, 0.01 * alone);
  // With keep_gathered each rank has two inputs whole, in place of its parts of them.
  const double input = kTime * kRows * kWidth * sizeof(float);
  EXPECT_NEAR(kept_by(size, true), cut + 2 * input * (size - 1), 0.01 * alone);
}

INSTANTIATE_TEST_SUITE_P(Tensor, GatheredLinearOnRanks, ::testing::Values(1, 2, 3, 4, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti::training::tensor_gathered_linear_test
