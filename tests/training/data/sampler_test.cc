#include "training/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "tests/training/data/support.h"
#include "tests/training/on_ranks.h"
#include "training/data/loader.h"
#include "training/ddp/ddp.h"

namespace tutti::training::sampler_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Indices = std::vector<std::int64_t>;

constexpr std::uint64_t kSeed = 20261121;  // of the random cases; each failure prints its case

struct Case {
  std::uint64_t samples, seed;
  int ranks;
  std::size_t rows;

  std::vector<DistributedSampler> samplers(EpochEnd end, std::uint64_t epoch = 0) const {
    std::vector<DistributedSampler> result;
    for (int rank = 0; rank < ranks; ++rank) {
      result.emplace_back(samples, rank, ranks, SamplerOptions{.seed = seed, .end = end});
      result.back().set_epoch(epoch);
    }
    return result;
  }
  std::string text() const {
    return (::testing::Message() << "samples " << samples << " ranks " << ranks << " rows " << rows << " seed " << seed)
        .GetString();
  }
};

Case random_case(Random& random) {
  const std::uint64_t samples = 1 + random.below(random.below(4) == 0 ? 8 : 400);
  const int ranks = static_cast<int>(1 + random.below(9));
  return {samples, random.next(), ranks, 1 + random.below(random.below(4) == 0 ? 1000 : 20)};
}

/// One step of all ranks, after a look at what must hold for any step.
std::vector<SamplerStep> next_of_all(std::vector<DistributedSampler>& samplers, std::size_t rows) {
  std::vector<SamplerStep> steps;
  for (DistributedSampler& sampler : samplers) {
    if (std::optional<SamplerStep> step = sampler.next(rows)) steps.push_back(std::move(*step));
  }
  EXPECT_TRUE(steps.empty() || steps.size() == samplers.size()) << "only some ranks' epochs have ended";
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    EXPECT_LE(steps[rank].indices.size(), rows);
    EXPECT_EQ(steps[rank].counts, steps[0].counts);
    EXPECT_EQ(steps[rank].total, std::accumulate(steps[rank].counts.begin(), steps[rank].counts.end(), std::size_t{0}));
  }
  return steps;
}

Indices whole_epoch(std::uint64_t samples, const SamplerOptions& options, std::uint64_t epoch) {
  DistributedSampler sampler(samples, 0, 1, options);
  sampler.set_epoch(epoch);
  return sampler.next(samples)->indices;
}

void expect_each_once(Indices seen, std::uint64_t samples) {
  std::sort(seen.begin(), seen.end());
  Indices all(samples);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(Shuffle, IsABijection) {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    Indices seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.push_back(static_cast<std::int64_t>(shuffled(i, size, mix64(size))));
    expect_each_once(seen, size);
  }
  const std::uint64_t most = std::uint64_t{1} << 62;
  EXPECT_LT(shuffled(most - 1, most, 1), most);
  EXPECT_NE(shuffled(most - 1, most, 1), shuffled(most - 2, most, 1));
}

// Where two neighbours go, over many keys: all ordered pairs of places must be about equally frequent. Were they
// exactly so, Pearson's statistic would follow chi-square with k = outcomes - 1 degrees of freedom, and pass k + 2
// sqrt(k x) + 2 x with a probability of at most e^-x (Laurent, Massart, 2000, lemma 1). x = 20: 2e-9 per size.
TEST(Shuffle, SendsPairsAnywhereEquallyOften) {
  for (std::uint64_t size : {2, 3, 5, 8, 13, 16, 32}) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, double> seen;
    const double outcomes = static_cast<double>(size * (size - 1)), expected = 1000, x = 20;
    const auto draws = static_cast<std::uint64_t>(outcomes * expected);
    for (std::uint64_t key = 0; key < draws; ++key) {
      ++seen[{shuffled(0, size, mix64(key)), shuffled(1, size, mix64(key))}];
    }
    double chi_square = (outcomes - static_cast<double>(seen.size())) * expected;
    for (const auto& [pair, count] : seen) chi_square += (count - expected) * (count - expected) / expected;
    const double degrees = outcomes - 1;
    EXPECT_LT(chi_square, degrees + 2 * std::sqrt(degrees * x) + 2 * x) << "size " << size;
  }
}

TEST(Sampler, TheOrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(whole_epoch(10, {.seed = 7}, 0), ElementsAre(3, 2, 9, 6, 5, 0, 4, 1, 7, 8));
  EXPECT_THAT(whole_epoch(10, {.seed = 7}, 1), ElementsAre(9, 7, 8, 0, 6, 4, 1, 5, 3, 2));
}

TEST(Sampler, SeedAndEpochEachChangeTheOrder) {
  const Indices first = whole_epoch(1000, {.seed = 1}, 0);
  EXPECT_EQ(first, whole_epoch(1000, {.seed = 1}, 0));
  EXPECT_NE(first, whole_epoch(1000, {.seed = 1}, 1));
  EXPECT_NE(first, whole_epoch(1000, {.seed = 2}, 0));
  Indices in_order(1000);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(in_order, whole_epoch(1000, {.seed = 1, .shuffle = false}, 3));
}

TEST(Sampler, UnevenShowsEverySampleOnce) {
  Random random(kSeed, 1);
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(random);
    SCOPED_TRACE(c.text());
    std::vector<DistributedSampler> samplers = c.samplers(EpochEnd::uneven, random.below(5));
    const std::uint64_t steps = samplers[0].steps(c.rows);
    std::uint64_t step = 0;
    Indices seen;
    for (; true; ++step) {
      const std::vector<SamplerStep> all = next_of_all(samplers, c.rows);
      if (all.empty()) break;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        EXPECT_EQ(all[rank].indices.size(), all[rank].counts[rank]);
        EXPECT_LE(all[rank].counts.front() - all[rank].counts[rank], 1u);
        seen.insert(seen.end(), all[rank].indices.begin(), all[rank].indices.end());
      }
    }
    EXPECT_EQ(step, steps);
    expect_each_once(seen, c.samples);
    // Ranks are parts of one sequence: one process with all ranks' rows sees the same, in the same order.
    DistributedSampler single(c.samples, 0, 1, {.seed = c.seed});
    single.set_epoch(samplers[0].state().epoch);
    EXPECT_EQ(seen, single.next(c.samples)->indices);
  }
}

TEST(Sampler, PadGivesAllRanksTheSameNumberAndTellsTheTrueOne) {
  Random random(kSeed, 2);
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(random);
    SCOPED_TRACE(c.text());
    std::vector<DistributedSampler> samplers = c.samplers(EpochEnd::pad);
    const Indices epoch = whole_epoch(c.samples, {.seed = c.seed}, 0);
    Indices seen, repeated;
    while (true) {
      const std::vector<SamplerStep> all = next_of_all(samplers, c.rows);
      if (all.empty()) break;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const Indices& indices = all[rank].indices;
        EXPECT_EQ(indices.size(), all[0].indices.size());
        const auto fresh = indices.begin() + static_cast<std::ptrdiff_t>(all[rank].counts[rank]);
        seen.insert(seen.end(), indices.begin(), fresh);
        repeated.insert(repeated.end(), fresh, indices.end());
      }
    }
    EXPECT_EQ(seen, epoch);
    EXPECT_EQ((seen.size() + repeated.size()) % static_cast<std::size_t>(c.ranks), 0u);
    EXPECT_LT(repeated.size(), static_cast<std::size_t>(c.ranks));
    for (std::size_t k = 0; k < repeated.size(); ++k) EXPECT_EQ(repeated[k], epoch[k % epoch.size()]);
  }
}

TEST(Sampler, DropLeavesOutFewerSamplesThanRanks) {
  Random random(kSeed, 3);
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(random);
    SCOPED_TRACE(c.text());
    std::vector<DistributedSampler> samplers = c.samplers(EpochEnd::drop);
    const std::uint64_t steps = samplers[0].steps(c.rows);
    std::uint64_t step = 0;
    Indices seen;
    for (; true; ++step) {
      const std::vector<SamplerStep> all = next_of_all(samplers, c.rows);
      if (all.empty()) break;
      for (const SamplerStep& one : all) {
        EXPECT_EQ(one.indices.size(), all[0].indices.size());
        EXPECT_GT(one.indices.size(), 0u);
        seen.insert(seen.end(), one.indices.begin(), one.indices.end());
      }
    }
    EXPECT_EQ(step, steps);
    Indices expected = whole_epoch(c.samples, {.seed = c.seed}, 0);
    expected.resize(c.samples - c.samples % static_cast<std::uint64_t>(c.ranks));
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(samplers[0].state().position, c.samples);  // nothing is left for other ranks that go on from here
  }
}

TEST(Sampler, ARunGoesOnWithOtherRanksWhereItWasSaved) {
  Random random(kSeed, 4);
  for (int i = 0; i < 300; ++i) {
    Case c = random_case(random);
    SCOPED_TRACE(c.text());
    std::vector<DistributedSampler> samplers = c.samplers(EpochEnd::uneven, 3);
    Indices seen;
    while (true) {
      const std::vector<SamplerStep> all = next_of_all(samplers, c.rows);
      if (all.empty()) break;
      for (const SamplerStep& one : all) seen.insert(seen.end(), one.indices.begin(), one.indices.end());
      if (random.below(3) != 0) continue;
      const SamplerState saved = samplers.back().state();
      EXPECT_EQ(saved.ranks, c.ranks);
      EXPECT_EQ(saved.position, seen.size());
      const Case other = random_case(random);
      c.ranks = other.ranks;
      c.rows = other.rows;
      c.seed = other.seed;  // must not matter
      samplers = c.samplers(EpochEnd::uneven, 9);
      for (DistributedSampler& sampler : samplers) sampler.restore(saved);
    }
    expect_each_once(seen, c.samples);
    EXPECT_EQ(samplers[0].state().epoch, 3u);
  }
}

TEST(Sampler, PeekAndStateAfterAreWhatNextWillDo) {
  Random random(kSeed, 5);
  for (int i = 0; i < 100; ++i) {
    const Case c = random_case(random);
    SCOPED_TRACE(c.text());
    for (EpochEnd end : {EpochEnd::uneven, EpochEnd::pad, EpochEnd::drop}) {
      const DistributedSampler still(c.samples, c.ranks - 1, c.ranks, {.seed = c.seed, .end = end});
      DistributedSampler moving = still;
      for (std::uint64_t step = 0; step < still.steps(c.rows) + 2; ++step) {
        EXPECT_EQ(still.state_after(step, c.rows), moving.state());
        EXPECT_EQ(moving.steps(c.rows), still.steps(c.rows) - std::min(step, still.steps(c.rows)));
        const auto peeked = still.peek(step, c.rows);
        const auto next = moving.next(c.rows);
        ASSERT_EQ(peeked.has_value(), next.has_value()) << "step " << step;
        if (next) {
          EXPECT_EQ(peeked->indices, next->indices) << "step " << step;
        }
      }
    }
  }
}

// The true counts make DDP's mean over ranks the gradient of one process, whatever the shares, empty ones included.
// f64: a handful of additions in another order, so a few units of 2^-53 times values of about 10.
TEST(Sampler, CountsMakeUnevenGradientsThoseOfOneProcess) {
  constexpr int kRanks = 4;
  torch::manual_seed(3);
  const torch::Tensor data = torch::randn({10, 5}, torch::kFloat64);  // steps of 8 and 2: shares 1, 1, 0, 0
  torch::nn::Linear single(5, 1);
  single->to(torch::kFloat64);
  std::vector<torch::nn::Linear> models;
  for (int rank = 0; rank < kRanks; ++rank) {
    models.emplace_back(5, 1);
    models.back()->to(torch::kFloat64);
    torch::NoGradGuard no_grad;
    models.back()->weight.copy_(single->weight);
    models.back()->bias.copy_(single->bias);
  }
  const auto loss_sum = [&](torch::nn::Linear& model, const Indices& indices) {
    return model->forward(data.index_select(0, torch::tensor(indices))).pow(2).sum();
  };
  const DistributedSampler whole(10, 0, 1, {.seed = 5});
  std::vector<torch::Tensor> expected;
  for (std::uint64_t step = 0; step < 2; ++step) {
    single->zero_grad();
    const SamplerStep all = *whole.peek(step, 2 * kRanks);
    (loss_sum(single, all.indices) / static_cast<double>(all.total)).backward();
    expected.push_back(single->weight.grad().clone());
  }
  const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
    torch::nn::Linear& model = models[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*model, comm);
    DistributedSampler sampler(10, rank, kRanks, {.seed = 5});
    for (std::size_t step = 0; step < 2; ++step) {
      ddp.zero_grad();
      const auto part = sampler.next(2);
      if (step == 1) {
        EXPECT_THAT(part->counts, ElementsAre(1, 1, 0, 0));
      }
      (loss_sum(model, part->indices) * (kRanks / static_cast<double>(part->total))).backward();
      EXPECT_TRUE(torch::allclose(model->weight.grad(), expected[step], 0, 1e-13)) << "step " << step;
    }
    EXPECT_FALSE(sampler.next(2));
  });
  EXPECT_EQ(errors, nothing(kRanks));
}

// A run that stops in the middle of an epoch and goes on in new objects ends with the bits of one that never stopped. A
// loader reads ahead on each rank, so what is saved is where training stands, not reading.
TEST(Sampler, ARunTakenUpAgainTrainsToTheSameBits) {
  constexpr int kRanks = 2;
  constexpr std::size_t kRows = 3;
  torch::manual_seed(4);
  const torch::Tensor data = torch::randn({40, 5});  // 6 steps of 6 rows and one of 4 in an epoch
  struct Saved {
    SamplerState sampler{.samples = 40, .seed = 6};
    torch::Tensor weight = torch::ones({1, 5}), bias = torch::zeros({1});
  };
  /// Trains until the end of that many epochs, or for `most` steps, and says where rank 0 stands then.
  const auto train = [&](const Saved& begin, std::uint64_t epochs, std::uint64_t most) {
    Saved end;
    const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
      torch::nn::Linear model(5, 1);
      {
        torch::NoGradGuard no_grad;
        model->weight.copy_(begin.weight);
        model->bias.copy_(begin.bias);
      }
      DistributedDataParallel ddp(*model, comm);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      DistributedSampler sampler(40, rank, kRanks);
      sampler.restore(begin.sampler);
      SamplerState state = sampler.state();
      std::uint64_t steps = 0;
      for (std::uint64_t epoch = state.epoch; epoch < epochs && steps < most; ++epoch) {
        sampler.set_epoch(epoch);
        Loader<torch::Tensor> loader(
            [&](std::uint64_t number) {
              return data.index_select(0, torch::tensor(sampler.peek(number, kRows)->indices));
            },
            {.threads = 2, .depth = 3, .end = sampler.steps(kRows)});
        for (; steps < most; ++steps) {
          const auto rows = loader.next();
          if (!rows) break;
          ddp.zero_grad();
          model->forward(*rows).pow(2).mean().backward();
          optimizer.step();
        }
        state = sampler.state_after(loader.position(), kRows);
      }
      if (rank == 0) end = {state, model->weight.detach().clone(), model->bias.detach().clone()};
    });
    EXPECT_EQ(errors, nothing(kRanks));
    return end;
  };
  const Saved whole = train({}, 2, 1000);
  EXPECT_EQ(whole.sampler.position, 40u);
  for (std::uint64_t stop : {1, 4, 7, 9}) {
    const Saved part = train({}, 2, stop);
    EXPECT_EQ(part.sampler.epoch, (stop - 1) / 7);
    const Saved again = train(part, 2, 1000);
    EXPECT_TRUE(torch::equal(again.weight, whole.weight) && torch::equal(again.bias, whole.bias)) << "stop " << stop;
    EXPECT_EQ(again.sampler, whole.sampler);
  }
}

TEST(Sampler, T15TheHeadersLoopGoesOnWhereTheStateWasTaken) {
  std::vector<std::int64_t> seen;
  DistributedSampler first(40, 0, 1);
  for (int step = 0; step < 2; ++step) {
    const auto taken = first.next(8);
    for (const std::int64_t index : taken->indices) seen.push_back(index);
  }
  const SamplerState saved = first.state();
  DistributedSampler sampler(40, 0, 1);
  sampler.restore(saved);
  sampler.set_epoch(saved.epoch);
  EXPECT_EQ(sampler.state().position, 16u);
  while (const auto step = sampler.next(8)) {
    for (const std::int64_t index : step->indices) seen.push_back(index);
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), 40u);
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int64_t>(i));
  sampler.restore(saved);
  sampler.set_epoch(saved.epoch + 1);
  EXPECT_EQ(sampler.state().position, 0u);
  sampler.restore(saved);
  sampler.set_epoch(saved.epoch);
  sampler.set_epoch(saved.epoch);  // that one begins it again
  EXPECT_EQ(sampler.state().position, 0u);
}

TEST(Sampler, MistakesAreNamed) {
  EXPECT_EQ(error_of([] { DistributedSampler(10, 4, 4); }), "DistributedSampler: rank 4 of 4 ranks is no rank");
  EXPECT_EQ(error_of([] { DistributedSampler(10, 0, 0); }), "DistributedSampler: rank 0 of 0 ranks is no rank");
  EXPECT_THAT(error_of([] { DistributedSampler(0, 1, 2); }), HasSubstr("rank 1: DistributedSampler: 0 samples"));
  DistributedSampler sampler(10, 1, 2);
  EXPECT_THAT(error_of([&] { sampler.next(0); }), HasSubstr("rows is 0"));
  SamplerState state = sampler.state();
  state.samples = 11;
  EXPECT_EQ(error_of([&] { sampler.restore(state); }),
            "rank 1: DistributedSampler: restore: the state is of a data set with 11 samples, this one has 10");
  state = sampler.state();
  state.position = 11;
  EXPECT_THAT(error_of([&] { sampler.restore(state); }), HasSubstr("position 11 is past the 10 samples"));
}

}  // namespace
}  // namespace tutti::training::sampler_test
