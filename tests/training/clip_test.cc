// The reference is torch's own clipping of the whole gradient in one process.
#include "training/clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tests/training/on_ranks.h"
#include "training/mesh/mesh.h"

namespace tutti::training::clip_test {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr std::uint64_t kSeed = 5;

/// Two parameters with gradients: one of 8 rows that ranks may cut, one that all hold whole.
Tensors make_parameters() {
  torch::manual_seed(kSeed);
  Tensors parameters{torch::zeros({8, 3}, torch::kFloat64), torch::zeros({5}, torch::kFloat64)};
  for (torch::Tensor& parameter : parameters) {
    parameter.requires_grad_();
    parameter.mutable_grad() = torch::randn_like(parameter);
  }
  return parameters;
}

/// This part of the rows, with its gradient.
torch::Tensor rows_of(const torch::Tensor& whole, int part, int parts) {
  const std::int64_t rows = whole.size(0) / parts;
  torch::Tensor piece = whole.detach().narrow(0, part * rows, rows).clone().requires_grad_();
  piece.mutable_grad() = whole.grad().narrow(0, part * rows, rows).clone();
  return piece;
}

class ClipOnRanks : public ::testing::TestWithParam<MeshShape> {};

// Claim 15. f64: 29 squares are added in another order, so the norm is off by at most 29 * 2^-53 of itself, and what is
// compared lies near 1.
TEST_P(ClipOnRanks, EqualsOneProcess) {
  const MeshShape shape = GetParam();
  const int parts = shape.ranks() / shape.dp;  // dp: replicas, that hold the same
  for (const double largest : {0.5, 100.0, 0.0}) {
    Tensors whole = make_parameters();
    const double norm = torch::nn::utils::clip_grad_norm_(whole, largest == 0 ? 1e9 : largest, 2.0);
    const Tensors given = make_parameters();
    const auto errors = on_ranks(shape.ranks(), [&](int rank, Communicator comm) {
      const Mesh mesh(comm, shape);
      const int part = place_of({1, shape.fsdp, shape.tp, shape.pp},
                                rank_at({1, shape.fsdp, shape.tp, shape.pp},
                                        {0, mesh.place().fsdp, mesh.place().tp, mesh.place().pp}))
                           .tp +
                       shape.tp * (mesh.place().fsdp + shape.fsdp * mesh.place().pp);
      ClippedParameters mine;
      mine.own.push_back(rows_of(given[0], part, parts));
      (part == 0 ? mine.own : mine.copies).push_back(rows_of(given[1], 0, 1));
      const torch::Tensor shared = (part == 0 ? mine.own : mine.copies).back();
      EXPECT_NEAR(clip_grad_norm(mine, {mesh.fsdp(), mesh.tp(), mesh.pp()}, largest), norm, 1e-13) << rank;
      EXPECT_TRUE(torch::allclose(mine.own[0].grad(), rows_of(whole[0], part, parts).grad(), 0, 1e-14)) << rank;
      EXPECT_TRUE(torch::allclose(shared.grad(), whole[1].grad(), 0, 1e-14)) << rank;
      if (largest != 0.5) {
        EXPECT_TRUE(torch::equal(shared.grad(), given[1].grad())) << "nothing was to be clipped";
      }
    });
    EXPECT_EQ(errors, nothing(shape.ranks())) << "seed " << kSeed;
  }
}

INSTANTIATE_TEST_SUITE_P(Clip, ClipOnRanks,
                         ::testing::Values(MeshShape{}, MeshShape{1, 2, 1, 1}, MeshShape{1, 1, 2, 1},
                                           MeshShape{1, 1, 1, 2}, MeshShape{2, 1, 1, 1}, MeshShape{1, 4, 1, 1},
                                           MeshShape{1, 2, 2, 1}, MeshShape{1, 1, 2, 2}, MeshShape{2, 2, 1, 1},
                                           MeshShape{1, 2, 2, 2}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return c == '=' || c == ','; });
                           return name;
                         });

TEST(Clip, LeavesGradientsAloneThatAreNotFinite) {
  torch::Tensor parameter = torch::zeros({2}).requires_grad_(), none = torch::zeros({2}).requires_grad_();
  parameter.mutable_grad() = torch::full({2}, INFINITY);
  EXPECT_TRUE(std::isinf(clip_grad_norm({{parameter, none}, {}}, {}, 1.0)));
  EXPECT_TRUE(torch::isinf(parameter.grad()).all().item<bool>());
  parameter.mutable_grad() = torch::full({2}, NAN);
  EXPECT_TRUE(std::isnan(clip_grad_norm({{parameter}, {none}}, {}, 1.0)));
}

// Squares of f16 and of large f32 gradients leave those types' range.
TEST(Clip, AddsSquaresInF64) {
  for (const torch::ScalarType type : {torch::kFloat16, torch::kFloat32}) {
    const double large = type == torch::kFloat16 ? 60000 : 1e30;
    torch::Tensor parameter = torch::zeros({4}, type).requires_grad_();
    parameter.mutable_grad() = torch::full({4}, large, type);
    const double exact = 2 * parameter.grad()[0].item<double>();
    EXPECT_DOUBLE_EQ(clip_grad_norm({{parameter}, {}}, {}, 0), exact);
  }
}

TEST(Clip, RefusesANegativeNorm) { EXPECT_THROW(clip_grad_norm({}, {}, -1), Error); }

}  // namespace
}  // namespace tutti::training::clip_test
