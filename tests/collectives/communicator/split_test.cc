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

/// Returns what the rank gets for a root that does not exist; the sentence begins with its name.
std::string named(Communicator& comm) {
  float x = 0;
  try {
    comm.broadcast(&x, &x, 1, DataType::f32, comm.size());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Returns how such a sentence begins. `group`: "group 'tp'".
std::string begin(int rank, const std::string& group, int job_rank, const std::string& where = ", thread of pid ") {
  return "rank " + std::to_string(rank) + " of " + group + " (job rank " + std::to_string(job_rank) + where;
}

TEST(GroupName, SaysTheJobsRank) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    const int rank = comm.rank();
    const auto is = [](Communicator& child, const std::string& expected) { MUST(named(child).starts_with(expected)); };
    MUST(named(comm).starts_with("rank " + std::to_string(rank) + " (thread of pid "));
    Communicator tp = comm.split(rank / 2, rank, "tp");
    is(tp, begin(rank % 2, "group 'tp'", rank));
    Communicator without = comm.split(rank % 2, -rank);
    is(without, begin(1 - rank / 2, "a group", rank));
    Communicator reversed = comm.split(0, -rank);
    is(reversed, begin(3 - rank, "a group", rank));
    Communicator all = comm.split(0, rank, "all");
    is(all, begin(rank, "group 'all'", rank));
    Communicator inside = reversed.split(reversed.rank() / 2, 0, "of the reversed");
    is(inside, begin(reversed.rank() % 2, "group 'of the reversed'", rank));
    Communicator each = comm.split(0, rank, "named by " + std::to_string(rank));  // they need not agree
    is(each, begin(rank, "group 'named by " + std::to_string(rank) + "'", rank));
    use(each, 100);
  }));
}

TEST(GroupName, OfACopyIsItsParents) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    const int rank = comm.rank();
    Communicator copy = comm.split(0, rank);
    MUST(named(copy).starts_with("rank " + std::to_string(rank) + " (thread of pid "));
    Communicator tp = comm.split(rank / 2, rank, "tp");
    Communicator copy_of_tp = tp.split(0, tp.rank());
    MUST(named(copy_of_tp).starts_with(begin(rank % 2, "group 'tp'", rank)));
    Communicator renamed = tp.split(0, tp.rank(), "messages");
    MUST(named(renamed).starts_with(begin(rank % 2, "group 'messages'", rank)));
    Communicator other_order = tp.split(0, -tp.rank());
    MUST(named(other_order).starts_with(begin(1 - rank % 2, "a group", rank)));
    comm.barrier();  // shrink() fails the calls of ranks that are still inside the split
    Communicator shrunk = tp.shrink();
    MUST(named(shrunk).starts_with(begin(rank % 2, "group 'tp'", rank)));
  }));
}

TEST(GroupName, OfARankAlone) {
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    const int rank = comm.rank();
    Communicator alone = comm.split(rank, 0, "pp");
    MUST(named(alone).starts_with(begin(0, "group 'pp'", rank)));
    MUST(alone.flight_recorder_text().starts_with(begin(0, "group 'pp'", rank)));
    MUST(alone.flight_recorder_json().find(begin(0, "group 'pp'", rank)) != std::string::npos);
    Communicator copy = alone.split(0, 0);
    MUST(named(copy).starts_with(begin(0, "group 'pp'", rank)));
    float x = 0;
    try {
      copy.recv(&x, 1, DataType::f32, 0);
      MUST(false);
    } catch (const Error& error) {
      MUST(std::string(error.what()).starts_with(begin(0, "group 'pp'", rank)));
    }
  }));
}

TEST(GroupName, IsShortAndPrintable) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    Communicator alone = comm.split(comm.rank(), 0);
    for (Communicator* parent : {&comm, &alone}) {
      for (const std::string& name : {std::string(65, 'x'), std::string("two\nlines"), std::string("\xC3\xA4")}) {
        try {
          (void)parent->split(0, 0, name);
          MUST(false);
        } catch (const Error& error) {
          MUST(error.code() == Code::invalid_argument);
          MUST(std::string(error.what()).find("expected at most 64, printable ASCII") != std::string::npos);
        }
      }
    }
    Communicator longest = comm.split(0, 0, std::string(64, '~'));  // the communicator works on
    use(longest, 10);
  }));
}

/// A part of a job that was made by itself, as PyTorch's groups are.
TEST(GroupName, OfAPartThatIsMadeByAnId) {
  const UniqueId id = Communicator::make_unique_id();
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Options options;
        options.name = "dp";
        options.job_ranks = {3, 5};
        Communicator comm = Communicator::from_unique_id(id, rank, 2, options);
        const int job_rank = options.job_ranks[static_cast<std::size_t>(rank)];
        MUST(named(comm).starts_with(begin(rank, "group 'dp'", job_rank, ", host ")));
        Communicator copy = comm.split(0, rank);
        MUST(named(copy).starts_with(begin(rank, "group 'dp'", job_rank, ", host ")));
        Communicator reversed = comm.split(0, -rank, "reversed");
        MUST(named(reversed).starts_with(begin(1 - rank, "group 'reversed'", job_rank, ", host ")));
        Communicator alone = comm.split(rank, 0);
        MUST(named(alone).starts_with(begin(0, "a group", job_rank, ", host ")));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_no_errors(errors);
}

TEST(GroupName, AndTheJobsRanksAreChecked) {
  const auto refused = [](const Options& options) {
    try {
      (void)Communicator::from_unique_id(Communicator::make_unique_id(), 1, 2, options);
    } catch (const Error& error) {
      return error.code() == Code::invalid_argument ? std::string(error.what()) : std::string();
    }
    return std::string();
  };
  for (const std::vector<int>& ranks : {std::vector<int>{1}, {1, 1}, {-1, 0}, {0, 1, 2}}) {
    Options options;
    options.job_ranks = ranks;
    EXPECT_NE(refused(options).find("job_ranks; expected one for each of the 2 ranks"), std::string::npos)
        << ranks.size();
  }
  Options options;
  options.name = "a\tb";
  EXPECT_NE(refused(options).find("which are not all printable"), std::string::npos);
}

}  // namespace
}  // namespace tutti::testing::split_test
