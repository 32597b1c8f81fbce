// Hosts for tests: network namespaces on this machine, joined by a switch. scripts/hosts.py makes and removes them and
// says what they are; this is its client. They end with this object, and with this process however it ends.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::testing {

class Hosts {
 public:
  explicit Hosts(int count) {
    start(count);
    std::istringstream words(answer());
    std::string state;
    words >> state;
    for (pid_t pid = 0; words >> pid;) holders_.push_back(pid);
    if (state != "ready") why_not_ = words.str().substr(state.size() + (words.str().size() > state.size() ? 1 : 0));
    if (state != "ready" && state != "unavailable") throw std::runtime_error("hosts.py says: " + words.str());
  }
  ~Hosts() {
    ::close(orders_);
    ::close(answers_);
    ::waitpid(server_, nullptr, 0);
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Empty when they are there.
  const std::string& why_not() const { return why_not_; }
  int count() const { return static_cast<int>(holders_.size()); }
  static std::string name(int host) {
    constexpr std::array kNames = {"alpha", "beta", "gamma", "delta"};
    return kNames[static_cast<std::size_t>(host)];
  }
  static std::string address(int host) { return "10.99.0." + std::to_string(host + 1); }

  /// The kernel's name for the host's network.
  std::string space(int host) const {
    const std::string holder = std::to_string(holders_[static_cast<std::size_t>(host)]);
    return std::filesystem::read_symlink("/proc/" + holder + "/ns/net").string();
  }

  /// Takes the host's cable out of the switch, or puts it back.
  void link(int host, bool up) { order("link " + std::to_string(host) + (up ? " up" : " down")); }
  /// Limits every link, both ways: "1gbit", or "none".
  void rate(const std::string& rate) { order("rate " + rate); }

  /// For a forked child with one thread: it is on the host from now on, and dies with its parent.
  void enter(int host) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(orders_);  // else this process would keep the hosts alive
    ::close(answers_);
    const std::filesystem::path folder = std::filesystem::current_path();
    for (const char* space : {"net", "uts", "ipc", "mnt"}) {
      const std::string path = "/proc/" + std::to_string(holders_[static_cast<std::size_t>(host)]) + "/ns/" + space;
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0 || ::setns(fd, 0) != 0) throw std::runtime_error("cannot enter " + path);
      ::close(fd);
    }
    std::filesystem::current_path(folder);
  }

 private:
  void start(int count) {
    int orders[2];
    int answers[2];
    if (::pipe2(orders, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    const std::string number = std::to_string(count);
    server_ = ::fork();
    if (server_ == 0) {
      ::dup2(orders[0], STDIN_FILENO);
      ::dup2(answers[1], STDOUT_FILENO);
      ::execl(TUTTI_HOSTS_PROGRAM, "hosts.py", number.c_str(), "--serve", nullptr);
      ::dprintf(STDOUT_FILENO, "unavailable %s cannot be run\n", TUTTI_HOSTS_PROGRAM);
      ::_exit(1);
    }
    ::close(orders[0]);
    ::close(answers[1]);
    orders_ = orders[1];
    answers_ = answers[0];
  }
  std::string answer() const {
    std::string line;
    for (char letter = 0;;) {
      pollfd item{answers_, POLLIN, 0};
      if (::poll(&item, 1, 30'000) <= 0 || ::read(answers_, &letter, 1) <= 0) return "nothing, after: " + line;
      if (letter == '\n') return line;
      line += letter;
    }
  }
  void order(const std::string& words) {
    const std::string line = words + "\n";
    if (::write(orders_, line.data(), line.size()) < 0) throw std::runtime_error("hosts.py has ended");
    if (const std::string said = answer(); said != "ok")
      throw std::runtime_error("hosts.py, told " + words + ": " + said);
  }

  pid_t server_ = -1;
  int orders_ = -1;
  int answers_ = -1;
  std::vector<pid_t> holders_;
  std::string why_not_;
};

/// At the start of a test that uses `hosts`.
#define NEEDS_HOSTS(hosts) \
  if (!(hosts).why_not().empty()) GTEST_SKIP() << "tutti-test: not run: " << (hosts).why_not()

}  // namespace tutti::testing
