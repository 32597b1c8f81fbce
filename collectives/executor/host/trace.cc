#include "collectives/executor/host/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tutti::executor {

namespace {

constexpr std::size_t kMostSteps = 1'000'000;  // 40 MB here, some 150 in the file; later ones are counted, not kept
constexpr std::size_t kMostCalls = 200'000;
constexpr std::string_view kEnding = ".json";
constexpr int kCallLine = 0;  // lanes are the lines below

std::string before_ending(const std::string& path, const std::string& addition) {
  return path.substr(0, path.size() - kEnding.size()) + addition + std::string(kEnding);
}

/// `path`, or another when this process has asked for it before.
std::string unused(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, int> uses;
  const std::lock_guard lock(mutex);
  const int use = ++uses[path];
  return use == 1 ? path : before_ending(path, fmt::format(".{}", use));
}

std::string step_name(plan::StepKind kind, int peer) {
  constexpr const char* names[] = {"open", "put to", "copy", "reduce", "signal", "wait for"};
  const char* name = names[static_cast<int>(kind)];
  return peer < 0 ? std::string(name) : fmt::format("{} {}", name, peer);
}

const char* name_of(transport::CallState state) {
  constexpr const char* names[] = {"entered", "done", "failed"};
  return names[static_cast<int>(state)];
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string rank_path(const std::string& option, const FileOwner& owner) {
  std::string path = option;
  bool names_rank = false;
  for (std::size_t at = 0; (at = path.find("%r", at)) != std::string::npos; names_rank = true) {
    const std::string rank = std::to_string(owner.rank);
    path.replace(at, 2, rank);
    at += rank.size();
  }
  if (!path.ends_with(kEnding)) path += kEnding;
  if (!names_rank) path = before_ending(path, fmt::format(".rank{}", owner.rank));
  if (owner.comm_id != 0) path = before_ending(path, fmt::format(".comm-{:x}", owner.comm_id));
  return path;
}

StepTrace::StepTrace(const std::string& path, FileOwner owner)
    : owner_(std::move(owner)), begin_(now()), path_(unused(path)), file_(path_) {
  if (!file_) log::error("cannot write the trace to {}", path_);
}

// The best of a few readings: one between whose parts the thread was interrupted would put all times off.
StepTrace::Moment StepTrace::now() {
  Moment best{};
  std::uint64_t shortest = ~std::uint64_t{0};
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = ticks();
    const std::int64_t ns = now_ns();
    const std::uint64_t took = ticks() - before;
    if (took >= shortest) continue;
    shortest = took;
    best = {before + took / 2, ns};
  }
  return best;
}

void StepTrace::step(plan::StepKind kind, int peer, int round, int lane, std::uint64_t begin, std::uint64_t end) {
  if (!file_) return;
  if (steps_.size() < kMostSteps) {
    steps_.push_back({begin, end, peer, round, lane, kind});
  } else {
    ++dropped_;
  }
}

void StepTrace::call(const CallSnapshot& call, const std::string& algorithm) {
  if (!file_) return;
  if (calls_.size() < kMostCalls) {
    calls_.push_back({call, algorithm, steps_.size()});
  } else {
    ++dropped_;
  }
}

void StepTrace::write() {
  // The counter's rate over the whole life of the trace: then an error in it is one of the two readings, and does not
  // grow with time as that of a short calibration would.
  const Moment end = now();
  const double ns_per_tick = static_cast<double>(end.ns - begin_.ns) /
                             static_cast<double>(std::max<std::uint64_t>(end.ticks - begin_.ticks, 1));
  const auto ns_of = [&](std::uint64_t t) {
    return static_cast<double>(begin_.ns) +
           static_cast<double>(static_cast<std::int64_t>(t - begin_.ticks)) * ns_per_tick;
  };
  // Lines of other communicators than the job's have numbers of their own, so that files of one rank can be joined.
  const std::uint64_t first_line = owner_.comm_id == 0 ? 0 : (owner_.comm_id % 1'000'000 + 1) * 16;
  const std::string prefix = owner_.comm_id == 0 ? "" : fmt::format("comm-{:x} ", owner_.comm_id);
  const char* separator = "\n";
  const auto put = [&](const std::string& event) {
    file_ << separator << event;
    separator = ",\n";
  };
  const auto put_name = [&](const char* what, std::uint64_t line, const std::string& name) {
    put(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", what, owner_.rank, line,
                    quoted(name)));
  };
  const auto put_event = [&](const std::string& name, const char* category, std::uint64_t line, std::uint64_t begun,
                             std::uint64_t ended, const std::string& arguments) {
    const double begin_ns = ns_of(begun);
    put(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
                    quoted(name), category, owner_.rank, first_line + line, begin_ns / 1e3,
                    std::max(ns_of(ended) - begin_ns, 0.0) / 1e3, arguments));
  };

  file_ << R"({"displayTimeUnit":"ns","traceEvents":[)";
  put_name("process_name", first_line, owner_.name);
  put_name("thread_name", first_line + kCallLine, prefix + "calls");
  int lanes = 0;
  for (const StepEvent& step : steps_) lanes = std::max(lanes, step.lane + 1);
  for (int lane = 0; lane < lanes; ++lane) {
    put_name("thread_name", first_line + static_cast<std::uint64_t>(lane) + 1, fmt::format("{}lane {}", prefix, lane));
  }
  std::size_t next_step = 0;
  const auto put_steps = [&](std::size_t steps_end, std::uint64_t sequence) {
    for (; next_step < steps_end; ++next_step) {
      const StepEvent& s = steps_[next_step];
      put_event(step_name(s.kind, s.peer), "step", static_cast<std::uint64_t>(s.lane) + 1, s.begin, s.end,
                fmt::format(R"("call":{},"round":{})", sequence, s.round));
    }
  };
  for (const CallEvent& event : calls_) {
    const CallSnapshot& call = event.call;
    put_steps(event.steps_end, call.sequence);
    put_event(call.text(), "call", kCallLine, call.entered, call.ended,
              fmt::format(R"("call":{},"algorithm":{},"bytes":{},"state":"{}")", call.sequence, quoted(event.algorithm),
                          call.bytes, name_of(call.state)));
  }
  put_steps(steps_.size(), 0);
  file_ << "\n]}\n";
}

StepTrace::~StepTrace() {
  if (!file_) return;
  write();
  file_.close();
  if (!file_) log::error("cannot write the trace to {}", path_);
  if (dropped_ > 0) {
    log::error("the trace {} lacks {} events; it holds the first {} steps and {} calls", path_, dropped_, kMostSteps,
               kMostCalls);
  }
}

}  // namespace tutti::executor
