#include "tests/chaos/judge.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

namespace tutti::chaos {
namespace {

/// Files that stay open in a process: the arena's file, and of each peer one until the next window is made or retired;
/// LibTorch's own.
int descriptors_that_stay(const Scenario& s, bool trains) { return s.ranks + (trains ? 3 : 0); }

class Judge {
 public:
  Judge(const Scenario& scenario, const Reports& reports, const Seen& seen)
      : s_(scenario), reports_(reports), seen_(seen) {}

  std::vector<std::string> run() {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      look_at_process(rank);
      if (!found_.empty()) continue;
      look_at_end(rank);
      look_at_what_is_left(rank);
    }
    if (found_.empty()) compare();
    return found_;
  }

 private:
  const Report& of(int rank) const { return reports_[static_cast<std::size_t>(rank)]; }
  std::string text(int rank) const { return of(rank).text.data(); }
  void find(int rank, const std::string& what) { found_.push_back(fmt::format("rank {} {}", rank, what)); }
  bool is_killed(int rank) const { return s_.fault == Fault::kill && rank == s_.victim && seen_.fault_ns != 0; }
  /// UCX before 1.14 ends a process itself that is refused a call in the middle of its handshake.
  bool may_be_ended_by_ucx(int rank, int status) const {
    return s_.network == "ucx" && s_.fault == Fault::refused && rank == s_.victim && WTERMSIG(status) == SIGABRT;
  }
  bool trains() const { return s_.work == Work::ddp || s_.work == Work::fsdp; }
  bool all_made() const {
    return std::all_of(reports_.begin(), reports_.begin() + s_.ranks,
                       [](const Report& report) { return report.made.load(); });
  }

  void look_at_process(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (seen_.late[r]) return find(rank, fmt::format("did not end in time; it was in call {}", of(rank).calls.load()));
    const int status = seen_.statuses[r];
    if (WIFSIGNALED(status) && !is_killed(rank) && !may_be_ended_by_ucx(rank, status))
      find(rank, fmt::format("was ended by signal {}", WTERMSIG(status)));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      find(rank, fmt::format("ended with status {}", WEXITSTATUS(status)));
  }

  void look_at_end(int rank) {
    if (is_killed(rank) || WIFSIGNALED(seen_.statuses[static_cast<std::size_t>(rank)])) return;
    const Report& report = of(rank);
    switch (report.end.load()) {
      case Report::right: return may_be_right(rank);
      case Report::told: return may_be_told(rank);
      case Report::wrong: return find(rank, "has wrong results: " + text(rank));
      case Report::other: return find(rank, "threw what is no tutti::Error: " + text(rank));
      default: return find(rank, "left no report");
    }
  }

  void may_be_right(int rank) {
    const bool must_fail =
        s_.fault == Fault::kill && seen_.victim_running && of(s_.victim).calls < s_.calls && all_made();
    if (must_fail) find(rank, "noticed nothing");
  }

  void may_be_told(int rank) {
    const Report& report = of(rank);
    const auto code = static_cast<Code>(report.code);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) find(rank, fmt::format("{}: {}", what, text(rank)));
    };
    expect(!text(rank).empty(), "has an error without a sentence");
    const std::string victim = fmt::format("rank {}", s_.victim);
    switch (s_.fault) {
      case Fault::none:
      case Fault::slow:
      case Fault::stop: expect(false, "has an error where nothing was wrong"); break;
      case Fault::kill:
      case Fault::stop_long:
        if (all_made() && !trains()) expect(text(rank).find(victim) != std::string::npos, "does not name the victim");
        break;
      case Fault::abort:
      case Fault::full_disk:
        // The first rank that gets the error closes the other communicators of a training.
        expect((code == Code::aborted && text(rank).find("chaos") != std::string::npos) ||
                   (trains() && (code == Code::mismatch || code == Code::aborted)),
               "has another error");
        break;
      case Fault::loss:
        if (!trains()) {
          expect(code == Code::timeout || code == Code::peer_died || code == Code::system, "has another error");
        }
        break;
      case Fault::wrong_call: expect(code == Code::mismatch, "has another error"); break;
      default: break;
    }
    const bool at_once =
        all_made() && (s_.fault == Fault::kill || s_.fault == Fault::abort || s_.fault == Fault::full_disk);
    const double limit = (at_once ? 0 : 2 * s_.deadline) + s_.slack();
    const std::int64_t since = seen_.fault_ns != 0 ? seen_.fault_ns : seen_.began_ns + s_.at_us * 1000;
    const double took = static_cast<double>(report.at_ns.load() - since) * 1e-9;
    // Where packets are lost all the time, each wait has its own deadline.
    if (took > limit && s_.fault != Fault::loss)
      find(rank, fmt::format("heard {:.1f} s behind the fault: {}", took, text(rank)));
  }

  void look_at_what_is_left(int rank) {
    const Report& report = of(rank);
    if (is_killed(rank) || s_.fault == Fault::refused || s_.fault == Fault::open_files) return;  // it cannot look
    // A worker of UCX before 1.14 whose handshakes are half made is left behind: ending it ends the process (links.cc).
    if (s_.network == "ucx" && report.end == Report::told) return;
    const int most = report.descriptors_before + descriptors_that_stay(s_, trains());
    if (report.descriptors_after > most) {
      find(rank, fmt::format("has {} descriptors, {} before", report.descriptors_after, report.descriptors_before));
    }
    if (!trains() && report.threads_after > report.threads_before) {
      find(rank, fmt::format("has {} threads, {} before", report.threads_after, report.threads_before));
    }
  }

  /// The ranks of one host must give the same sentence.
  void compare() {
    const bool same = s_.fault == Fault::kill || s_.fault == Fault::abort || s_.fault == Fault::stop_long ||
                      s_.fault == Fault::wrong_call;
    if (!same || s_.hosts || trains() || !all_made()) return;
    int first = -1;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      if (is_killed(rank) || of(rank).end != Report::told) continue;
      if (first < 0) first = rank;
      if (text(rank) != text(first)) find(rank, fmt::format("says '{}', rank {} '{}'", text(rank), first, text(first)));
    }
  }

  const Scenario& s_;
  const Reports& reports_;
  const Seen& seen_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> judge(const Scenario& scenario, const Reports& reports, const Seen& seen) {
  return Judge(scenario, reports, seen).run();
}

}  // namespace tutti::chaos
