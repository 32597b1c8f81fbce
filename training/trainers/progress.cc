#include "training/trainers/progress.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

constexpr int kBarWidth = 24;
constexpr int kWarmUpSteps = 5;  // the first steps allocate and touch memory; the figures leave them out
constexpr double kSmoothing = 0.9;

/// The exit status, or -1.
int run(const std::vector<std::string>& command, bool quiet) {
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    if (quiet && (!std::freopen("/dev/null", "w", stderr) || !std::freopen("/dev/null", "w", stdout))) _exit(126);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Progress::Progress(const ProgressOptions& options) : options_(options), terminal_(isatty(STDOUT_FILENO) == 1) {
  const auto open = [&](const std::string& path, std::ofstream& file) {
    if (path.empty()) return;
    file.open(path);
    if (!file) throw Error(Code::invalid_argument, fmt::format("{}: cannot write '{}'", options_.program, path));
  };
  open(options_.csv, csv_);
  open(options_.json_lines, json_lines_);
  if (csv_.is_open()) {
    csv_ << fmt::format(
        "step,loss,learning_rate,gradient_norm,step_ms,wait_ms,{}_per_s,communication_share,bytes_sent\n",
        options_.unit);
  }
}

void Progress::write(const StepMetrics& step) {
  const double speed = step.units / step.seconds, share = step.wait_seconds / step.seconds;
  if (csv_.is_open()) {
    csv_ << fmt::format("{},{:.9g},{:.6g},{:.6g},{:.4f},{:.4f},{:.0f},{:.4f},{}\n", step.step, step.loss,
                        step.learning_rate, step.gradient_norm, step.seconds * 1e3, step.wait_seconds * 1e3, speed,
                        share, step.bytes_sent)
         << std::flush;
  }
  if (json_lines_.is_open()) {
    const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; };
    json_lines_ << fmt::format(
                       R"({{"step":{},"loss":{},"learning_rate":{},"gradient_norm":{},"step_ms":{},"wait_ms":{},)"
                       R"("{}_per_s":{},"communication_share":{},"bytes_sent":{}}})",
                       step.step, number(step.loss), number(step.learning_rate), number(step.gradient_norm),
                       number(step.seconds * 1e3), number(step.wait_seconds * 1e3), options_.unit, number(speed),
                       number(share), step.bytes_sent)
                << std::endl;
  }
}

void Progress::show(const StepMetrics& step) {
  write(step);
  if (step.step >= kWarmUpSteps) {
    total_seconds_ += step.seconds;
    total_wait_ += step.wait_seconds;
    total_units_ += step.units;
    ++counted_;
  }
  const double keep = step.step == 0 ? 0 : kSmoothing;
  smooth_seconds_ = keep * smooth_seconds_ + (1 - keep) * step.seconds;
  smooth_wait_ = keep * smooth_wait_ + (1 - keep) * step.wait_seconds;

  const int done = step.step + 1, steps = options_.steps;
  if (!terminal_ && done != 1 && done != steps && done % ((steps + 9) / 10) != 0) return;
  std::string bar(static_cast<std::size_t>(kBarWidth * done / steps), '#');
  bar.resize(kBarWidth, '.');
  const std::string line =
      fmt::format("[{}] step {}/{}  loss {:.4f}  {:.0f} {}/s  communication {:.1f} %", bar, done, steps, step.loss,
                  step.units / smooth_seconds_, options_.unit, 100 * smooth_wait_ / smooth_seconds_);
  std::printf(terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
  if (terminal_ && done == steps) std::printf("\n");
  std::fflush(stdout);
}

std::string Progress::summary() const {
  if (counted_ == 0) return "too few steps for a measurement";
  return fmt::format("{:.2f} ms per step, {:.0f} {}/s, communication {:.1f} % of the time (waited for, not hidden)",
                     1e3 * total_seconds_ / counted_, total_units_ / total_seconds_, options_.unit,
                     100 * total_wait_ / total_seconds_);
}

bool Progress::all_written() {
  bool all = true;
  const auto look = [&](const std::string& path, std::ofstream& file) {
    if (!file.is_open() || file.flush()) return;
    std::fprintf(stderr, "%s: '%s' could not be written to its end; is the disk full?\n", options_.program.c_str(),
                 path.c_str());
    all = false;
  };
  look(options_.csv, csv_);
  look(options_.json_lines, json_lines_);
  return all;
}

bool plot_loss(const std::string& csv, const std::string& png) {
  const std::filesystem::path script = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plot_loss.py";
  std::vector<std::string> pythons{"python3", "/usr/bin/python3"};
  if (const char* chosen = std::getenv("TUTTI_PYTHON")) pythons = {chosen};
  for (const std::string& python : pythons) {
    if (run({python, "-c", "import matplotlib"}, true) != 0) continue;
    return run({python, script.string(), csv, png}, false) == 0;
  }
  std::fprintf(stderr,
               "no loss curve: matplotlib is missing (apt install python3-matplotlib, or set TUTTI_PYTHON to "
               "a Python that has it)\n");
  return false;
}

}  // namespace tutti::training
