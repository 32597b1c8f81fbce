// Values are small integers, so that every type holds every sum exactly and results can be compared to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/abort.h"
#include "training/tensor/regions.h"

namespace tutti::training::tensor_regions_test {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;
using RegionFunction = torch::Tensor (*)(const torch::Tensor&, const Communicator&, const std::string&);
using Formula = torch::Tensor (*)(const Tensors& of_ranks, int rank);

torch::Tensor own(const Tensors& x, int rank) { return x[static_cast<std::size_t>(rank)]; }
torch::Tensor sum(const Tensors& x, int) {
  torch::Tensor result = torch::zeros_like(x[0]);
  for (const torch::Tensor& t : x) result = result + t;
  return result;
}
torch::Tensor part(const torch::Tensor& x, std::int64_t dim, const Tensors& of_ranks, int rank) {
  return x.chunk(static_cast<std::int64_t>(of_ranks.size()), dim)[static_cast<std::size_t>(rank)];
}
torch::Tensor last_part(const Tensors& x, int rank) { return part(own(x, rank), -1, x, rank); }
torch::Tensor last_all(const Tensors& x, int) { return torch::cat(x, -1); }
torch::Tensor first_all(const Tensors& x, int) { return torch::cat(x, 0); }
torch::Tensor first_part_of_sum(const Tensors& x, int rank) { return part(sum(x, rank), 0, x, rank); }

struct Case {
  const char* name;
  RegionFunction function;
  Formula forward, backward;
};
const Case kCases[] = {
    {"copy_to_region", copy_to_region, own, sum},
    {"reduce_from_region", reduce_from_region, sum, own},
    {"scatter_to_region", scatter_to_region, last_part, last_all},
    {"gather_from_region", gather_from_region, last_all, last_part},
    {"gather_sequence", gather_sequence, first_all, first_part_of_sum},
    {"scatter_sequence", scatter_sequence, first_part_of_sum, first_all},
};
constexpr torch::ScalarType kTypes[] = {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kFloat16};

torch::Tensor small_integers(at::IntArrayRef sizes, torch::ScalarType type) {
  return torch::randint(-4, 5, sizes, torch::kInt64).to(type);
}

class RegionsOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(RegionsOnRanks, DoForwardAndBackwardWhatTheirFormulasSay) {
  const int size = GetParam();
  torch::manual_seed(7);
  for (const Case& item : kCases) {
    for (const torch::ScalarType type : kTypes) {
      for (const bool contiguous : {true, false}) {
        SCOPED_TRACE(::testing::Message() << item.name << " " << c10::toString(type) << " contiguous " << contiguous);
        Tensors x, weights, y(static_cast<std::size_t>(size)), gradients(static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          x.push_back(contiguous ? small_integers({2 * size, 3, 5 * size}, type)
                                 : small_integers({5 * size, 3, 2 * size}, type).transpose(0, 2));
        }
        for (int rank = 0; rank < size; ++rank) weights.push_back(small_integers(item.forward(x, rank).sizes(), type));
        const Tensors before{x[0].clone()};
        const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
          const auto i = static_cast<std::size_t>(rank);
          const torch::Tensor leaf = x[i].detach().requires_grad_();
          y[i] = item.function(leaf, comm, "");
          (y[i] * weights[i]).sum().backward();
          gradients[i] = leaf.grad();
        });
        ASSERT_EQ(errors, nothing(size));
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_TRUE(torch::equal(own(y, rank), item.forward(x, rank))) << "forward, rank " << rank;
          EXPECT_TRUE(torch::equal(own(gradients, rank), item.backward(weights, rank))) << "backward, rank " << rank;
        }
        EXPECT_TRUE(torch::equal(x[0], before[0]));  // inputs stay
      }
    }
  }
}

TEST_P(RegionsOnRanks, GradientsOfOneMatrixRowAndOfScalarsPass) {
  const int size = GetParam();
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    const torch::Tensor row = torch::full({2}, rank + 1.0).requires_grad_();  // one dimension, no copy needed
    const torch::Tensor all = gather_from_region(row, comm);
    EXPECT_EQ(all.numel(), 2 * size);
    all.sum().backward();
    EXPECT_TRUE(torch::equal(row.grad(), torch::ones({2})));
    const torch::Tensor number = torch::tensor(rank + 1.0).requires_grad_();
    const torch::Tensor total = reduce_from_region(number, comm);
    EXPECT_EQ(total.item<double>(), size * (size + 1) / 2.0);
    total.backward();
    EXPECT_EQ(number.grad().item<double>(), 1);
  });
  EXPECT_EQ(errors, nothing(size));
}

// y = sum of x over ranks; g = d(y^2)/dx = 2 y on each of N ranks, so the sum of all g has the derivative 2 N in each
// x.
TEST_P(RegionsOnRanks, GradientsOfGradients) {
  const int size = GetParam();
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    const torch::Tensor x = torch::full({3}, rank + 1.0).requires_grad_();
    const torch::Tensor y = reduce_from_region(x, comm).pow(2).sum();
    const torch::Tensor g = torch::autograd::grad({y}, {x}, {}, {}, /*create_graph=*/true)[0];
    g.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2.0 * size)));
  });
  EXPECT_EQ(errors, nothing(size));
}

TEST_P(RegionsOnRanks, SumGradientsAddsThemUpInOneCallAndAccumulates) {
  const int size = GetParam();
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    const torch::Tensor a = torch::ones({2, 3}).requires_grad_(), b = torch::ones({4}).requires_grad_();
    const torch::Tensor frozen = torch::ones({2}), unused = torch::ones({5}).requires_grad_();
    for (int pass = 1; pass <= 2; ++pass) {
      const Tensors mine = sum_gradients({a, frozen, torch::Tensor(), b, unused}, comm);
      EXPECT_FALSE(mine[1].requires_grad());
      EXPECT_FALSE(mine[2].defined());
      const torch::Tensor loss = (mine[0] * (rank + 1)).sum() + (mine[3] * mine[3] * 2).sum() + mine[1].sum();
      const std::uint64_t before = comm.traffic().calls;
      loss.backward();
      EXPECT_EQ(comm.traffic().calls - before, size > 1 ? 1u : 0u);
      EXPECT_TRUE(torch::equal(a.grad(), torch::full({2, 3}, pass * size * (size + 1) / 2.0)));
      EXPECT_TRUE(torch::equal(b.grad(), torch::full({4}, pass * 4.0 * size)));
    }
    if (size > 1) {
      EXPECT_TRUE(torch::equal(unused.grad(), torch::zeros({5})));
    }
  });
  EXPECT_EQ(errors, nothing(size));
}

// In the same kind of algorithm (a ring), all-gather and reduce-scatter move what an all-reduce moves.
TEST_P(RegionsOnRanks, Claim14TheSequenceFormMovesTheSameBytes) {
  const int size = GetParam();
  Options options;
  options.algorithm = "ring";
  const auto errors = on_ranks(
      size,
      [&](int, Communicator comm) {
        const torch::Tensor whole = torch::ones({12, 64, 32}), mine = torch::ones({12 / size, 64, 32});
        const auto bytes_of = [&](const std::function<void()>& call) {
          const std::uint64_t before = comm.traffic().bytes_put;
          call();
          return comm.traffic().bytes_put - before;
        };
        const std::uint64_t reduced = bytes_of([&] { (void)reduce_from_region(whole, comm); });
        const std::uint64_t gathered = bytes_of([&] { (void)gather_sequence(mine, comm); });
        const std::uint64_t scattered = bytes_of([&] { (void)scatter_sequence(whole, comm); });
        EXPECT_EQ(reduced, gathered + scattered);
        EXPECT_EQ(reduced, 2 * static_cast<std::size_t>(size - 1) * whole.nbytes() / static_cast<std::size_t>(size));
      },
      options);
  EXPECT_EQ(errors, nothing(size));
}

INSTANTIATE_TEST_SUITE_P(Tensor, RegionsOnRanks, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

TEST(TensorRegions, OneRankGetsItsInputBack) {
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    const torch::Tensor x = torch::ones({3, 3});
    for (const Case& item : kCases) EXPECT_TRUE(item.function(x, comm, "").is_same(x)) << item.name;
  });
  EXPECT_EQ(errors, nothing(1));
}

TEST(TensorRegions, SizesThatCannotBeDividedAreNamed) {
  auto errors = on_ranks(2, [&](int, Communicator comm) {
    (void)scatter_to_region(torch::ones({4, 3, 7}), comm, "block1.mlp");
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("block1.mlp: scatter_to_region: dimension 2 of the input of sizes [4, 3, 7] cannot be "
                                 "divided by 2 ranks"));
    EXPECT_THAT(error, HasSubstr("rank "));
  }
  errors = on_ranks(3, [&](int, Communicator comm) { (void)scatter_sequence(torch::ones({4, 3}), comm); });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("scatter_sequence: dimension 0 of the input of sizes [4, 3] cannot be divided by 3"));
  }
}

// Rank 1 alone makes the mistake: rank 0, which waits for it, hears of it.
TEST(TensorRegions, ATypeThatCannotBeUsedIsNamedOnEveryRank) {
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    (void)reduce_from_region(torch::ones({4}, rank == 1 ? torch::kInt32 : torch::kFloat32), comm);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1: reduce_from_region: the tensor is of type Int; it can be f32, f64, f16"));
  }
}

TEST(TensorRegions, ParametersOfTwoTypesAreRefusedBySumGradients) {
  const auto errors = on_ranks(2, [&](int, Communicator comm) {
    const torch::Tensor a = torch::ones({2}).requires_grad_(), b = torch::ones({2}, torch::kFloat64).requires_grad_();
    (void)sum_gradients({a, b}, comm, "block0");
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("block0: sum_gradients: parameters are of types Float and Double"));
  }
}

TEST(TensorRegions, ARankThatThrowsBringsTheOthersDown) {
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    or_abort(comm, "training step", [&] {
      if (rank == 2) throw std::runtime_error("the disk is full");
      (void)reduce_from_region(torch::ones({4}), comm);
    });
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 2: training step: the disk is full"));
}

TEST(TensorRegions, OrAbortReturnsWhatTheStepReturns) {
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    EXPECT_EQ(or_abort(comm, "step", [] { return 42; }), 42);
    comm.barrier();  // it still works
  });
  EXPECT_EQ(errors, nothing(1));
}

}  // namespace
}  // namespace tutti::training::tensor_regions_test
