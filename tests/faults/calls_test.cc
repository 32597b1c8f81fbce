// Calls that programs make: C1 to C11 of the list of faults.
#include <gmock/gmock.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "tests/collectives/processes.h"
#include "tests/faults/seccomp.h"
#include "tests/support/emulated.h"

namespace tutti::testing::calls_test {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The kernel's copy between processes is refused once messages have gone by it.
TEST(Calls, C1ARefusedCopyNamesTheCallThatWasMade) {
  NOT_EMULATED("filters are for the machine's own calls");
  const auto outcomes = run_processes(2,
                                      [](Communicator& comm) {
                                        std::vector<char> data(16 << 20, static_cast<char>(comm.rank() + 1));
                                        for (int i = 0; i < 5; ++i) {
                                          if (i == 3 && comm.rank() == 1) refuse_call(SYS_process_vm_readv, EPERM);
                                          if (comm.rank() == 0) comm.send(data.data(), data.size(), DataType::i8, 1);
                                          if (comm.rank() == 1) comm.recv(data.data(), data.size(), DataType::i8, 0);
                                        }
                                        return std::string("all went well");
                                      },
                                      {{"TUTTI_CROSS_MEMORY", "on"}, {"TUTTI_TIMEOUT", "10s"}});
  if (outcomes[1].said == "all went well") GTEST_SKIP() << "tutti-test: not run: there is no cross-memory access here";
  EXPECT_THAT(outcomes[1].error, HasSubstr("recv(16777216 x i8)"));
  EXPECT_THAT(outcomes[1].error, HasSubstr("Operation not permitted"));
}

TEST(Calls, C2AReceiversBufferThatIsGoneIsItsOwn) {
  NOT_EMULATED("there is no cross-memory access");
  const auto outcomes =
      run_processes(2,
                    [](Communicator& comm) {
                      constexpr std::size_t kBytes = 16 << 20;
                      void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                      if (comm.rank() == 0) {
                        comm.send(data, kBytes, DataType::i8, 1);
                      } else {
                        munmap(data, kBytes);
                        comm.recv(data, kBytes, DataType::i8, 0);
                      }
                      return std::string("went well");
                    },
                    {{"TUTTI_CROSS_MEMORY", "on"}, {"TUTTI_TIMEOUT", "10s"}});
  EXPECT_THAT(outcomes[1].error, AnyOf(ContainsRegex("its own buffer of 16777216 bytes at 0x[0-9a-f]* is not there"),
                                       HasSubstr("ended by signal 11")));
}

TEST(Calls, C2AReceiversBufferThatCannotBeWrittenIsItsOwn) {
  NOT_EMULATED("there is no cross-memory access");
  const auto outcomes =
      run_processes(2,
                    [](Communicator& comm) {
                      constexpr std::size_t kBytes = 16 << 20;
                      void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                      if (comm.rank() == 0) {
                        comm.send(data, kBytes, DataType::i8, 1);
                      } else {
                        mprotect(data, kBytes, PROT_READ);
                        comm.recv(data, kBytes, DataType::i8, 0);
                      }
                      return std::string("went well");
                    },
                    {{"TUTTI_CROSS_MEMORY", "on"}, {"TUTTI_TIMEOUT", "10s"}});
  EXPECT_THAT(outcomes[1].error,
              AnyOf(ContainsRegex("its own buffer of 16777216 bytes at 0x[0-9a-f]* cannot be written"),
                    HasSubstr("ended by signal 11")));
}

// Each program does with one rank what it does with two.
std::string to_itself(Communicator& comm) {
  const int rank = comm.rank();
  int sent = 7 + rank;
  int got = 0;
  const auto expect = [&](const char* what) { return got == sent ? std::string() : std::string(what); };
  Work work = comm.send_async(&sent, 1, DataType::i32, rank);
  comm.recv(&got, 1, DataType::i32, rank);
  work.wait();
  std::string wrong = expect("send_async, recv; ");
  got = 0;
  Work first = comm.send_async(&sent, 1, DataType::i32, rank, 3);
  Work second = comm.recv_async(&got, 1, DataType::i32, rank, 3);
  first.wait();
  second.wait();
  wrong += expect("both async; ");
  got = 0;
  second = comm.recv_async(&got, 1, DataType::i32, rank, 4);
  if (second.test()) wrong += "a receive is done before its message is sent; ";
  comm.send(&sent, 1, DataType::i32, rank, 4);
  second.wait();
  wrong += expect("recv_async, send; ");
  got = 0;
  int source = -1;
  comm.send(&sent, 1, DataType::i32, rank);
  comm.recv(&got, 1, DataType::i32, kAnySource, 0, &source);
  wrong += expect("from any; ");
  if (source != rank) wrong += "the source; ";
  int more[2] = {1, 2};
  comm.send(&more[0], 1, DataType::i32, rank, 5);
  comm.send(&more[1], 1, DataType::i32, rank, 5);
  int one = 0, two = 0;
  comm.recv(&one, 1, DataType::i32, rank, 5);
  comm.recv(&two, 1, DataType::i32, rank, 5);
  if (one != 1 || two != 2) wrong += "two of one tag out of order; ";
  return wrong;
}

TEST(Calls, C4MessagesToItselfAloneAsAmongTwo) {
  for (const int size : {1, 2}) {
    const auto outcomes = run_processes(size, to_itself, {{"TUTTI_TIMEOUT", "5s"}});
    expect_no_errors(outcomes);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "") << size << " ranks";
  }
}

TEST(Calls, C4AloneAReceiveWithoutASendEnds) {
  const auto outcomes = run_processes(1,
                                      [](Communicator& comm) {
                                        int got = 0;
                                        std::string text =
                                            error_of([&] { comm.recv(&got, 1, DataType::i32, 0); }) + "; ";
                                        Work work = comm.recv_async(&got, 1, DataType::i32, 0, 9);
                                        text += error_of([&] { work.wait(); }) + "; ";
                                        work = comm.recv_async(&got, 1, DataType::i32, 0, 9);
                                        comm.abort("enough");
                                        return text + error_of([&] { work.wait(); });
                                      },
                                      {{"TUTTI_TIMEOUT", "200ms"}});
  EXPECT_THAT(outcomes[0].said, HasSubstr("receives a message of tag 0 that it has not sent"));
  EXPECT_THAT(outcomes[0].said, HasSubstr("it waited 0.2 s"));
  EXPECT_THAT(outcomes[0].said, HasSubstr("rank 0 aborted the communicator: enough"));
}

TEST(Calls, C5AloneAnAlgorithmThatDoesNotExistIsRefused) {
  for (const int size : {1, 2}) {
    const auto outcomes = run_processes(size, [](Communicator& comm) {
      float value = 1;
      CallOptions options;
      options.algorithm = "fastest";
      return error_of([&] { comm.all_reduce(&value, &value, 1, DataType::f32, ReduceOp::sum, options); });
    });
    for (const Outcome& outcome : outcomes)
      EXPECT_THAT(outcome.said, HasSubstr("all_reduce has no algorithm 'fastest'"));
  }
}

TEST(Calls, C5NaNsHaveOnePatternAloneToo) {
  for (const int size : {1, 2}) {
    const auto outcomes = run_processes(size, [](Communicator& comm) {
      std::string wrong;
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::prod}) {
        for (const bool in_place : {false, true}) {
          std::uint32_t bits = 0xffc12345;  // negative, with a payload
          std::uint32_t result = 0;
          comm.all_reduce(&bits, in_place ? &bits : &result, 1, DataType::f32, op);
          if ((in_place ? bits : result) != 0x7fc00000) wrong += name_of(op) + std::string("; ");
        }
      }
      return wrong;
    });
    expect_no_errors(outcomes);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "") << size << " ranks";
  }
}

TEST(Calls, C6ADeadlineThatNoRankCausesReadsWell) {
  const auto outcomes = run_processes(2,
                                      [](Communicator& comm) {
                                        int got = 0;
                                        const std::string text =
                                            error_of([&] { comm.recv(&got, 1, DataType::i32, kAnySource); });
                                        return text;
                                      },
                                      {{"TUTTI_TIMEOUT", "300ms"}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.said, HasSubstr("waited 0.3 s in recv(1 x i32) from any rank"));
    EXPECT_THAT(outcome.said, HasSubstr("no rank has sent a message; rank"));
  }
}

TEST(Calls, C6SeveralThatAreLateAreSeveral) {
  const auto outcomes = run_processes(3,
                                      [](Communicator& comm) {
                                        while (comm.rank() != 0 && comm.status() == Code::ok) std::this_thread::yield();
                                        int got = 0;
                                        return error_of([&] { comm.recv(&got, 1, DataType::i32, kAnySource); });
                                      },
                                      {{"TUTTI_TIMEOUT", "300ms"}});
  EXPECT_THAT(outcomes[0].said, ContainsRegex("^rank 1 [(].*, rank 2 [(].* have not answered; rank 0 "));
}

TEST(Calls, C8BuffersThatOverlapAreRefused) {
  for (const int size : {1, 2}) {
    const auto outcomes = run_processes(size, [size](Communicator& comm) {
      std::vector<float> m(400, 1);
      const int rank = comm.rank();
      std::string all;
      const auto refused = [&](const char* what, const std::function<void()>& body) {
        const std::string error = error_of(body);
        if (error.find("send and recv overlap; expected") == std::string::npos) all += what + (": " + error + "; ");
      };
      const auto shared = [&](const char* what, const std::function<void()>& body) {
        const std::string error = error_of(body);
        if (error.find("shares memory with") == std::string::npos) all += what + (": " + error + "; ");
      };
      const auto taken = [&](const char* what, const std::function<void()>& body) {
        const std::string error = error_of(body);
        if (!error.empty()) all += what + (": " + error + "; ");
      };
      const auto f32 = DataType::f32;
      refused("all_reduce", [&] { comm.all_reduce(m.data(), m.data() + 1, 20, f32); });
      refused("all_gather", [&] { comm.all_gather(m.data() + 1 + 20 * rank, m.data(), 20, f32); });
      refused("reduce_scatter", [&] { comm.reduce_scatter(m.data(), m.data() + 1 + 20 * rank, 20, f32); });
      refused("all_to_all", [&] { comm.all_to_all(m.data(), m.data() + 1, 20, f32); });
      const std::vector<std::size_t> counts(static_cast<std::size_t>(size), 20);
      std::vector<std::size_t> places(static_cast<std::size_t>(size), 0);
      for (std::size_t r = 0; r < places.size(); ++r) places[r] = 20 * r;
      const std::vector<std::size_t> one_place(static_cast<std::size_t>(size), 0);
      const auto all_to_allv = [&](float* send, float* recv, const std::vector<std::size_t>& recv_places) {
        return [&, send, recv] {
          comm.all_to_allv(send, counts.data(), places.data(), recv, counts.data(), recv_places.data(), f32);
        };
      };
      const auto mine = [&](float* send, float* recv) {
        return [&, send, recv] {
          comm.group_start();
          comm.send(send, 20, f32, size - 1 - rank);
          comm.recv(recv, 20, f32, size - 1 - rank);
          comm.group_end();
        };
      };
      shared("all_to_allv", all_to_allv(m.data(), m.data() + 1, places));
      shared("messages", mine(m.data(), m.data() + 1));
      if (size > 1) shared("all_to_allv, one place", all_to_allv(m.data(), m.data() + 100, one_place));
      taken("all_to_allv", all_to_allv(m.data(), m.data(), places));
      taken("all_to_allv beside", all_to_allv(m.data(), m.data() + 100, places));
      taken("messages", mine(m.data(), m.data() + 20));
      taken("all_reduce", [&] { comm.all_reduce(m.data(), m.data(), 20, f32); });
      taken("beside", [&] { comm.all_reduce(m.data(), m.data() + 20, 20, f32); });
      taken("all_gather", [&] { comm.all_gather(m.data() + 20 * rank, m.data(), 20, f32); });
      taken("reduce_scatter", [&] { comm.reduce_scatter(m.data(), m.data() + 20 * rank, 20, f32); });
      taken("all_to_all", [&] { comm.all_to_all(m.data(), m.data(), 20, f32); });
      return all;
    });
    expect_no_errors(outcomes);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "") << size << " ranks";
  }
}

// A second thread aborts while its rank is in split(): who comes out of it with a communicator hears in its first call.
TEST(Calls, C10AnAbortMeanwhileReachesTheNewCommunicator) {
  constexpr int kTries = 60;
  for (int i = 0; i < kTries; ++i) {
    const auto outcomes =
        run_processes(2,
                      [i](Communicator& comm) {
                        std::atomic<bool> begun{false};
                        std::thread aborter;
                        if (comm.rank() == 0) {
                          aborter = std::thread([&] {
                            while (!begun) {
                            }
                            for (int spin = 0; spin < i * 100; ++spin) {
                              cpu_relax();
                            }
                            comm.abort("meanwhile");
                          });
                        }
                        const std::int64_t began = now_ns();
                        std::string text = error_of([&] {
                          comm.barrier();
                          begun = true;
                          Communicator child = comm.split(0, comm.rank());
                          float value = 1;
                          for (int k = 0; k < 1000; ++k) child.all_reduce(&value, &value, 1, DataType::f32);
                        });
                        begun = true;
                        if (aborter.joinable()) aborter.join();
                        const double took = static_cast<double>(now_ns() - began) * 1e-9;
                        return took > 2 ? "took " + std::to_string(took) + " s: " + text : std::string();
                      },
                      {{"TUTTI_TIMEOUT", "6s"}});
    for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.said + outcome.error, "") << "try " << i;
  }
}

TEST(Calls, C11TheFlightSignalIsTheProgramsOrAPossibleOne) {
  for (const char* number : {"9", "19", "65", "-3", "12", "11", "6", "8"}) {
    const auto outcome = in_child(
        [] {
          std::signal(SIGUSR2, [](int) {});
          return error_of([] { (void)Communicator::from_environment(); });
        },
        {{"TUTTI_FLIGHT_SIGNAL", number}});
    EXPECT_THAT(outcome.said, HasSubstr(std::string("TUTTI_FLIGHT_SIGNAL is ") + number)) << number;
  }
  const auto outcomes = run_processes(
      2, [](Communicator& comm) { return comm.barrier(), Communicator::from_environment(), std::string(); },
      {{"TUTTI_FLIGHT_SIGNAL", "12"}});
  expect_no_errors(outcomes);  // its own handler is no other one
}

}  // namespace
}  // namespace tutti::testing::calls_test
