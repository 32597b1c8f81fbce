// Every collective between hosts, compared with a plain loop over all ranks' inputs; random programs with splits across
// the hosts, groups and messages. A failure prints the seed; TUTTI_TEST_SEED repeats it.
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>

#include "collectives/algorithms/table.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/random_programs.h"
#include "tests/collectives/transfer_programs.h"
#include "tests/hosts/job.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing::collectives_test {
namespace {

constexpr Collective kAll[] = {Collective::all_reduce,  Collective::reduce_scatter, Collective::all_gather,
                               Collective::broadcast,   Collective::reduce,         Collective::all_to_all,
                               Collective::all_to_allv, Collective::gather,         Collective::scatter,
                               Collective::barrier};

struct Shape {
  int hosts;
  int each;
  std::string network = "tcp";
};

class Collectives : public ::testing::TestWithParam<Shape> {
 protected:
  /// Runs `body` on the shape's ranks, with the communicator of their environment.
  void run(const std::function<void(Communicator&)>& body) {
    Hosts hosts(GetParam().hosts);
    NEEDS_HOSTS(hosts);
    const std::string missing = GetParam().network == "ucx" ? in_child(transport::UcxWire::missing).said : "";
    if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
    const auto rank = [&](const Place&) {
      Communicator comm = Communicator::from_environment(with_timeout(60s));
      body(comm);
    };
    Job job(hosts, GetParam().each, rank, {{"TUTTI_NETWORK", GetParam().network}});
    EXPECT_TRUE(job.finish(120s));
  }
};

TEST_P(Collectives, AreExact) {
  run([](Communicator& comm) {
    for (const Collective collective : kAll) {
      for (const std::size_t count : {0, 1, 13, 1000, 70'001}) {
        for (const DataType type : {DataType::f32, DataType::bf16, DataType::i64}) {
          for (const bool in_place : {false, true}) {
            Case c;
            c.collective = collective;
            c.count = count;
            c.type = type;
            c.root = has_root(collective) ? comm.size() - 1 : 0;
            c.in_place = in_place;
            c.registered = (count + static_cast<std::size_t>(comm.rank())) % 2 == 0;
            check_case(comm, c);
          }
        }
      }
    }
  });
}

TEST_P(Collectives, OfSeveralMegabytes) {
  run([](Communicator& comm) {
    for (const Collective collective : kAll) {
      for (const bool registered : {false, true}) {
        Case c;
        c.collective = collective;
        c.count = 900'001;
        c.registered = registered;
        check_case(comm, c);
      }
    }
  });
}

TEST_P(Collectives, AreDeterministic) {
  run([](Communicator& comm) {
    for (const std::size_t count : {1, 1000, 300'000}) {
      Case c;
      c.count = count;
      c.deterministic = true;
      check_case(comm, c);
    }
  });
}

TEST_P(Collectives, RandomPrograms) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run([seed](Communicator& comm) { RandomProgram(comm, seed, true).run(100); });
}

TEST_P(Collectives, RandomMessages) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run([seed](Communicator& comm) {
    TransferProgram(comm, seed).run_in_order(60);
    TransferProgram(comm, seed + 1).run_shuffled(60);
  });
}

// A communicator of one host's ranks, one of the first ranks of all hosts, and what is left of both.
TEST_P(Collectives, Splits) {
  const int each = GetParam().each;
  run([each](Communicator& comm) {
    Communicator inside = comm.split(comm.rank() / each, comm.rank());
    Communicator across = comm.split(comm.rank() % each, comm.rank());
    for (Communicator* part : {&inside, &across, &comm}) {
      for (const std::size_t count : {5, 50'000}) {
        Case c;
        c.count = count;
        check_case(*part, c);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, Collectives,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}, Shape{3, 2}, Shape{4, 1}, Shape{4, 2},
                                           Shape{2, 2, "ucx"}, Shape{3, 1, "ucx"}),
                         [](const auto& info) {
                           return fmt::format("{}x{}_{}", info.param.hosts, info.param.each, info.param.network);
                         });

}  // namespace
}  // namespace tutti::testing::collectives_test
