// A process that forks.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"

namespace tutti::testing::fork_test {
namespace {

// A fork's copies of communicators end with it, and neither the parent nor its peers notice.
TEST(Fork, AChildMayEndAsItLikes) {
  const auto body = [](Communicator& comm) -> std::string {
    Communicator other = comm.split(0, comm.rank());
    std::int32_t one = 1;
    other.all_reduce_async(&one, &one, 1, DataType::i32).wait();  // now it has a thread, too
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);  // the test fails by this signal rather than waiting for ever
      other = Communicator();
      comm = Communicator();
      ::_exit(0);
    }
    int status = -1;
    MUST(TEMP_FAILURE_RETRY(::waitpid(child, &status, 0)) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::int32_t sum = 1;
    for (int i = 0; i < 3; ++i) other.all_reduce(&sum, &sum, 1, DataType::i32);
    comm.barrier();
    MUST(sum == 8);
    return "";
  };
  expect_no_errors(run_processes(2, body));
}

// The child's calls say so at once, and its parent and the peers go on.
TEST(Fork, AChildCannotUseItsParentsCommunicator) {
  const auto body = [](Communicator& comm) -> std::string {
    std::int32_t one = 1;
    comm.all_reduce(&one, &one, 1, DataType::i32);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      const auto is_refused = [](const std::function<void()>& call) {
        try {
          call();
        } catch (const Error& error) {
          return error.code() == Code::invalid_argument &&
                 std::string(error.what()).find("a fork of its process cannot use it") != std::string::npos;
        }
        return false;
      };
      bool refused = is_refused([&] { comm.barrier(); });
      refused = refused && is_refused([&] { comm.all_reduce_async(&one, &one, 1, DataType::i32); });
      refused = refused && is_refused([&] { comm.send(&one, 1, DataType::i32, 0); });
      refused = refused && is_refused([&] { comm.split(0, 0); });
      refused = refused && is_refused([&] { comm.shrink(); });
      comm.abort("of no consequence");
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    MUST(TEMP_FAILURE_RETRY(::waitpid(child, &status, 0)) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    comm.barrier();
    return "";
  };
  expect_no_errors(run_processes(2, body));
}

}  // namespace
}  // namespace tutti::testing::fork_test
