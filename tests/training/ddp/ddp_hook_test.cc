// What communication hooks do with buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/training/ddp/ddp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::ddp_hook_test {
namespace {

using ::testing::HasSubstr;

class DdpHookTypes : public ::testing::TestWithParam<torch::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(DdpHook, DdpHookTypes, ::testing::Values(torch::kFloat16, torch::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Two ranks: each gradient is divided and rounded, the sum of two is formed in f32 and rounded once. All of that can be
// done here, to the bit.
TEST_P(DdpHookTypes, CompressedGradientsAreTheRoundedMean) {
  const torch::ScalarType type = GetParam();
  std::vector<Net> nets{make_net(1), make_net(1)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  Net reference = make_net(1);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DdpOptions options = small_buckets();
    options.hook = compress_gradients(type);
    options.broadcast_buffers = false;
    DistributedDataParallel ddp(*nets[i], comm, options);
    for (int pass = 0; pass < 2; ++pass) {  // the second one uses the same buffers
      ddp.zero_grad();
      nets[i]->loss(rows[i]).backward();
    }
  });
  EXPECT_EQ(errors, nothing(2));

  std::vector<Tensors> shards;
  for (const torch::Tensor& x : rows) {
    zero_gradients(*reference);
    reference->loss(x).backward();
    shards.push_back(gradients_of(*reference));
  }
  for (std::size_t p = 0; p < shards[0].size(); ++p) {
    const auto half = [&](int rank) {
      return (shards[static_cast<std::size_t>(rank)][p] * 0.5).to(type).to(torch::kFloat32);
    };
    const torch::Tensor mean = (half(0) + half(1)).to(type).to(torch::kFloat32);
    for (Net& net : nets) EXPECT_TRUE(same_bits(gradients_of(*net)[p], mean)) << "parameter " << p;
  }
}

// Half the bytes of f32 on the links.
TEST_P(DdpHookTypes, CompressedGradientsAreHalfTheBytes) {
  std::vector<std::uint64_t> bytes;
  for (const bool compress : {false, true}) {
    std::vector<torch::nn::Linear> nets{torch::nn::Linear(256, 256), torch::nn::Linear(256, 256)};
    std::uint64_t put = 0;
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      DdpOptions options;
      if (compress) options.hook = compress_gradients(GetParam());
      DistributedDataParallel ddp(*nets[static_cast<std::size_t>(rank)], comm, options);
      const std::uint64_t before = comm.traffic().bytes_put;
      nets[static_cast<std::size_t>(rank)]->forward(torch::ones({1, 256})).sum().backward();
      constexpr std::uint64_t kStepCheck = 8;
      if (rank == 0) put = comm.traffic().bytes_put - before - kStepCheck;
    });
    EXPECT_EQ(errors, nothing(2));
    bytes.push_back(put);
  }
  EXPECT_EQ(bytes[0], 2 * bytes[1]);
}

// 60000 on two ranks: their sum is past f16's largest (65504), their mean is not.
TEST(DdpHook, DividesBeforeItAddsInF16) {
  std::vector<torch::nn::Linear> nets{torch::nn::Linear(1, 4), torch::nn::Linear(1, 4)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    DdpOptions options;
    options.hook = compress_gradients(torch::kFloat16);
    DistributedDataParallel ddp(*nets[static_cast<std::size_t>(rank)], comm, options);
    nets[static_cast<std::size_t>(rank)]->forward(torch::full({1, 1}, 60000.0)).sum().backward();
  });
  EXPECT_EQ(errors, nothing(2));
  for (auto& net : nets) EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4, 1}, 60000.0)));
}

/// Counts, and negates the mean.
class Own : public CommunicationHook {
 public:
  explicit Own(std::vector<std::size_t>& log) : log_(log) {}
  Work start(Communicator& communicator, GradientBucket& bucket) override {
    log_.push_back(bucket.index);
    return communicator.all_reduce_async(bucket.gradients.data_ptr(), bucket.gradients.data_ptr(),
                                         static_cast<std::size_t>(bucket.gradients.numel()), DataType::f32,
                                         ReduceOp::avg);
  }
  void finish(GradientBucket& bucket) override { bucket.gradients.neg_(); }

 private:
  std::vector<std::size_t>& log_;
};

TEST(DdpHook, AnyoneMayWriteOne) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  std::vector<std::vector<std::size_t>> logs(2);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DdpOptions options = small_buckets();
    options.hook = [&logs, i] { return std::make_unique<Own>(logs[i]); };
    DistributedDataParallel ddp(*nets[i], comm, options);
    nets[i]->loss(rows[i]).backward();
    ASSERT_EQ(logs[i].size(), ddp.buckets().size());
    for (std::size_t b = 0; b < logs[i].size(); ++b) EXPECT_EQ(logs[i][b], b);
  });
  EXPECT_EQ(errors, nothing(2));
  Net reference = make_net(1);
  std::vector<Tensors> shards;
  for (const torch::Tensor& x : rows) {
    zero_gradients(*reference);
    reference->loss(x).backward();
    shards.push_back(gradients_of(*reference));
  }
  Tensors mean = average(shards);
  for (torch::Tensor& tensor : mean) tensor.neg_();
  for (Net& net : nets) expect_same_bits(gradients_of(*net), mean);
}

TEST(DdpHook, RefusesToCompressToAnotherType) {
  try {
    compress_gradients(torch::kInt8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("compress_gradients: type is Char; it can be Half or BFloat16"));
  }
}

}  // namespace
}  // namespace tutti::training::ddp_hook_test
