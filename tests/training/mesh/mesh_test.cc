#include "training/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/training/on_ranks.h"

namespace tutti::training::mesh_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text, int ranks) {
  try {
    parse_mesh(text, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MeshText, IsRead) {
  EXPECT_EQ(parse_mesh("dp=2,fsdp=3,tp=4,pp=5", 120), (MeshShape{2, 3, 4, 5}));
  EXPECT_EQ(parse_mesh("pp=2,dp=2", 4), (MeshShape{2, 1, 1, 2}));
  EXPECT_EQ(parse_mesh("fsdp=2,tp=2", 4), (MeshShape{1, 2, 2, 1}));
  EXPECT_EQ(parse_mesh("tp=1", 1), MeshShape{});
}

TEST(MeshText, GivesDpWhatIsLeft) {
  EXPECT_EQ(parse_mesh("tp=2", 8), (MeshShape{4, 1, 2, 1}));
  EXPECT_EQ(parse_mesh("fsdp=2,pp=2", 8), (MeshShape{2, 2, 1, 2}));
}

TEST(MeshText, IsRefusedWithWhatIsWrong) {
  EXPECT_THAT(error_of("", 2), HasSubstr("mesh '': '' is none of them; expected dimensions such as 'dp=2,tp=2'"));
  EXPECT_THAT(error_of("ep=2", 2), HasSubstr("'ep=2' is none of them"));
  EXPECT_THAT(error_of("tp", 2), HasSubstr("'tp' is none of them"));
  EXPECT_THAT(error_of("tp=2,tp=2", 4), HasSubstr("tp is given twice"));
  EXPECT_THAT(error_of("tp=0", 2), HasSubstr("'0' is no number of ranks"));
  EXPECT_THAT(error_of("tp=-1", 2), HasSubstr("'-1' is no number of ranks"));
  EXPECT_THAT(error_of("tp=2x", 2), HasSubstr("'2x' is no number of ranks"));
  EXPECT_THAT(error_of("tp=", 2), HasSubstr("'' is no number of ranks"));
  EXPECT_THAT(error_of("tp=2,", 2), HasSubstr("it ends with a comma"));
  EXPECT_THAT(error_of("tp=99999999999", 2), HasSubstr("'99999999999' is no number of ranks"));
  EXPECT_THAT(error_of("tp=1000000,fsdp=1000000,pp=1000000", 2),
              HasSubstr("there are 2 ranks, which is not a multiple"));
  EXPECT_THAT(error_of("tp=3", 4), HasSubstr("there are 4 ranks, which is not a multiple of 3"));
  EXPECT_THAT(error_of("dp=3,tp=1", 4), HasSubstr("there are 4 ranks, which is not the product 3"));
}

TEST(MeshText, IsWrittenAsItIsRead) {
  EXPECT_EQ(to_text(MeshShape{2, 3, 4, 5}), "dp=2,fsdp=3,tp=4,pp=5");
  EXPECT_EQ(to_text(MeshShape{1, 2, 1, 2}), "fsdp=2,pp=2");
  EXPECT_EQ(to_text(MeshShape{}), "dp=1");
}

TEST(MeshPlaces, AreOnePerRankWithTpInnermostAndPpOutermost) {
  const MeshShape shape{2, 3, 4, 5};
  for (int rank = 0; rank < shape.ranks(); ++rank) EXPECT_EQ(rank_at(shape, place_of(shape, rank)), rank);
  EXPECT_EQ(rank_at(shape, {0, 0, 1, 0}), 1);
  EXPECT_EQ(rank_at(shape, {0, 1, 0, 0}), 4);
  EXPECT_EQ(rank_at(shape, {1, 0, 0, 0}), 12);
  EXPECT_EQ(rank_at(shape, {0, 0, 0, 1}), 24);
}

/// Who is in this communicator, in its order.
std::vector<int> members(Communicator comm, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&rank, ranks.data(), 1, DataType::i32);
  return ranks;
}

class MeshOnRanks : public ::testing::TestWithParam<MeshShape> {};

TEST_P(MeshOnRanks, CommunicatorsHoldThoseWhoDifferInTheirDimensionOnly) {
  const MeshShape shape = GetParam();
  const auto errors = on_ranks(shape.ranks(), [&](int rank, Communicator comm) {
    const Mesh mesh(comm, shape);
    const MeshPlace here = mesh.place();
    EXPECT_EQ(rank_at(shape, here), rank);
    const auto expect = [&](const Communicator& dimension, int size, int own, auto place_at) {
      std::vector<int> expected;
      for (int i = 0; i < size; ++i) expected.push_back(rank_at(shape, place_at(i)));
      EXPECT_EQ(members(dimension, rank), expected) << "rank " << rank;
      EXPECT_EQ(dimension.rank(), own);
    };
    expect(mesh.dp(), shape.dp, here.dp, [&](int i) { return MeshPlace{i, here.fsdp, here.tp, here.pp}; });
    expect(mesh.fsdp(), shape.fsdp, here.fsdp, [&](int i) { return MeshPlace{here.dp, i, here.tp, here.pp}; });
    expect(mesh.tp(), shape.tp, here.tp, [&](int i) { return MeshPlace{here.dp, here.fsdp, i, here.pp}; });
    expect(mesh.pp(), shape.pp, here.pp, [&](int i) { return MeshPlace{here.dp, here.fsdp, here.tp, i}; });
    expect(mesh.data(), shape.data_ranks(), mesh.data_rank(), [&](int i) {
      return MeshPlace{i / shape.fsdp, i % shape.fsdp, here.tp, here.pp};
    });
    EXPECT_EQ(members(mesh.world(), rank).size(), static_cast<std::size_t>(shape.ranks()));
    EXPECT_EQ(mesh.hosts(), 1);
    EXPECT_EQ(mesh.traffic().bytes_put > 0, shape.ranks() > 1);
  });
  EXPECT_EQ(errors, nothing(shape.ranks()));
}

INSTANTIATE_TEST_SUITE_P(Mesh, MeshOnRanks,
                         ::testing::Values(MeshShape{}, MeshShape{2, 1, 1, 1}, MeshShape{1, 2, 1, 1},
                                           MeshShape{1, 1, 2, 1}, MeshShape{1, 1, 1, 2}, MeshShape{2, 2, 1, 1},
                                           MeshShape{1, 2, 2, 1}, MeshShape{1, 1, 2, 2}, MeshShape{2, 1, 2, 2},
                                           MeshShape{1, 2, 2, 2}, MeshShape{2, 2, 2, 1}, MeshShape{1, 1, 8, 1}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return c == '=' || c == ','; });
                           return name;
                         });

TEST(Mesh, DescribesWhoIsWhere) {
  std::string text;
  const auto errors = on_ranks(8, [&](int rank, Communicator comm) {
    const Mesh mesh(comm, MeshShape{1, 2, 2, 2});
    if (rank == 3) text = mesh.describe();
  });
  EXPECT_EQ(errors, nothing(8));
  EXPECT_EQ(text,
            "mesh of 8 ranks on 1 host: fsdp=2,tp=2,pp=2\n"
            "stage 0  replica 0  [0 1] [2 3]\n"
            "stage 1  replica 0  [4 5] [6 7]\n");
}

MeshOptions on_host(const std::string& name, bool across = false) {
  MeshOptions options;
  options.host = name;
  options.tp_across_hosts = across;
  return options;
}

TEST(Mesh, RefusesATensorParallelGroupThatIsOnTwoHosts) {
  const auto name = [](int rank) { return rank < 2 ? "left" : "right"; };
  const auto errors = on_ranks(4, [&](int rank, Communicator comm) {
    Mesh(comm, MeshShape{1, 1, 4, 1}, on_host(name(rank)));
  });
  EXPECT_THAT(errors,
              ::testing::Each(HasSubstr("tp=4 puts ranks 0 and 2, which are on different hosts, into one group")));

  std::string text;
  const auto good = on_ranks(4, [&](int rank, Communicator comm) {
    const Mesh inside(comm, MeshShape{2, 1, 2, 1}, on_host(name(rank)));
    const Mesh allowed(comm, MeshShape{1, 1, 4, 1}, on_host(name(rank), true));
    EXPECT_EQ(inside.hosts(), 2);
    if (rank == 0) text = inside.describe();
  });
  EXPECT_EQ(good, nothing(4));
  EXPECT_EQ(text,
            "mesh of 4 ranks on 2 hosts: dp=2,tp=2\n"
            "stage 0  replica 0  host 0 [0 1]\n"
            "stage 0  replica 1  host 1 [2 3]\n");
}

/// Who reads the log of a mesh must find the process.
TEST(Mesh, NamesItsGroupsInErrors) {
  const auto errors = on_ranks(4, [](int rank, Communicator comm) {
    Mesh mesh(comm, {1, 1, 2, 2});
    Communicator tp = mesh.tp();
    std::vector<float> data(8);
    if (rank == 3) tp.broadcast(data.data(), data.data(), 8, DataType::f32, 0);
    if (rank != 3) tp.all_reduce(data.data(), data.data(), 8, DataType::f32);
    if (rank >= 2) tp.barrier();
  });
  EXPECT_EQ(errors[0] + errors[1], "");
  EXPECT_EQ(errors[2], errors[3]);
  EXPECT_THAT(errors[2], HasSubstr("rank 0 of group 'tp' (job rank 2, thread of pid "));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 of group 'tp' (job rank 3, thread of pid "));
}

TEST(Mesh, RefusesAShapeThatDoesNotFitOnEveryRank) {
  for (const MeshShape& shape : {MeshShape{2, 2, 1, 1}, MeshShape{0, 1, 1, 1}, MeshShape{-2, -1, 1, 1}}) {
    const auto errors = on_ranks(2, [&](int, Communicator comm) { Mesh(comm, shape); });
    EXPECT_THAT(errors, ::testing::Each(HasSubstr("cannot be laid on 2 ranks")));
  }
}

TEST(Mesh, RefusesDifferentShapesOnEveryRank) {
  const auto errors = on_ranks(4, [&](int rank, Communicator comm) {
    Mesh(comm, rank == 2 ? MeshShape{4, 1, 1, 1} : MeshShape{1, 1, 1, 4});
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("the shape or the options of rank 2 differ from those of rank 0")));
}

}  // namespace
}  // namespace tutti::training::mesh_test
