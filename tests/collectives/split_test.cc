// Communicators made of communicators: who is in, in which order, and that they are independent of each other.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::split_test {
namespace {

/// The parent's rank of each member, by rank of the child.
std::vector<std::int32_t> members(Communicator& child, int own) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(child.size()), -1);
  const std::int32_t mine = own;
  child.all_gather(&mine, all.data(), 1, DataType::i32);
  return all;
}

void use(Communicator& comm, std::size_t count) {
  for (const Collective collective : {Collective::all_reduce, Collective::all_to_all, Collective::broadcast}) {
    Case c;
    c.collective = collective;
    c.count = count;
    c.root = comm.size() - 1;
    check_case(comm, c);
  }
}

TEST(Split, ByColourAndKeyThenRank) {
  expect_no_errors(run_threads(6, [](Communicator& comm) {
    const int rank = comm.rank();
    Communicator child = comm.split(rank % 2, -rank);
    MUST(child.size() == 3);
    MUST((members(child, rank) ==
          (rank % 2 == 0 ? std::vector<std::int32_t>{4, 2, 0} : std::vector<std::int32_t>{5, 3, 1})));
    Communicator same_key = comm.split(7, 3);
    MUST(same_key.size() == 6 && same_key.rank() == rank);
    Communicator extreme = comm.split(0x7FFFFFFF, rank == 3 ? -0x7FFFFFFF - 1 : rank == 2 ? 0x7FFFFFFF : 0);
    MUST((members(extreme, rank) == std::vector<std::int32_t>{3, 0, 1, 4, 5, 2}));
    use(child, 1000);
    use(extreme, 10);
  }));
}

TEST(Split, ANegativeColourGetsNone) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    const Communicator none = comm.split(-1, 0);
    MUST(!none);
    Communicator some = comm.split(comm.rank() == 2 ? -5 : 1, 0);
    MUST(static_cast<bool>(some) == (comm.rank() != 2));
    if (some) use(some, 100);
    use(comm, 100);
  }));
}

TEST(Split, AloneInAColour) {
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    Communicator child = comm.split(comm.rank(), 0);
    MUST(child.size() == 1 && child.rank() == 0);
    MUST(child.memory().total() == 0);
    use(child, 100);
    Communicator pair = comm.split(comm.rank() == 0 ? 0 : 1, 0);
    MUST(pair.size() == (comm.rank() == 0 ? 1 : 2));
    use(pair, 100);
  }));
}

TEST(Split, Nested) {
  expect_no_errors(run_threads(8, [](Communicator& comm) {
    Communicator half = comm.split(comm.rank() / 4, 0);
    Communicator quarter = half.split(half.rank() / 2, -half.rank());
    MUST(quarter.size() == 2);
    for (Communicator* each : {&comm, &half, &quarter}) use(*each, 300);
    MUST(quarter.rank() == 1 - half.rank() % 2);
  }));
}

TEST(Split, ParentsDestroyedFirst) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    Communicator child = comm.split(comm.rank() % 2, 0);
    comm = {};
    use(child, 1000);
    Communicator grandchild = child.split(0, 0);
    child = {};
    use(grandchild, 1000);
  }));
}

TEST(Split, ChildrenUsedAtTheSameTimeByDifferentThreads) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    Communicator children[] = {comm.split(0, 0), comm.split(0, -comm.rank()), comm.split(comm.rank() % 2, 0)};
    std::vector<std::thread> threads;
    std::vector<std::string> errors(std::size(children) + 1);
    const auto guarded = [&](std::size_t i, Communicator& each) {
      try {
        for (std::size_t turn = 0; turn < 20; ++turn) {
          use(each, 1 + turn * 50);
          if (turn % 10 == 3) use(*std::make_unique<Communicator>(each.split(0, 0)), 10);
        }
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    };
    for (std::size_t i = 0; i < std::size(children); ++i) {
      threads.emplace_back([&, i] { guarded(i, children[i]); });
    }
    guarded(std::size(children), comm);
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) MUST(error == "");
  }));
}

TEST(Split, AfterAsyncOperationsAndWithTheParentsOptions) {
  Options options;
  options.deterministic = true;
  options.algorithm = "put_two_shot";
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        std::int32_t value = 1;
        const Work work = comm.all_reduce_async(&value, &value, 1, DataType::i32);
        Communicator child = comm.split(0, 0);
        MUST(work.test() && value == 2);
        child.all_reduce(&value, &value, 1, DataType::i32);
        MUST(child.explain_last_call().algorithm == "put_two_shot");
      },
      options));
}

}  // namespace
}  // namespace tutti::testing::split_test
