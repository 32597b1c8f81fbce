#include "cli/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace tutti::cli {
namespace {

using plan::Range;
using plan::Step;
using plan::StepKind;

constexpr double kUnit = 56;  // pixels of one unit of time
constexpr double kRow = 72;   // and of one lane
constexpr double kBox = 30;   // height of a box
constexpr double kLeft = 96;
constexpr double kTop = 56;

struct Box {
  int row;
  double begin;
  const Step* step;
};

struct Arrow {
  int from_row;
  double from;
  int to_row;
  double to;
  const char* style;  // class in the style sheet
};

/// The time of every step, if each starts as soon as it can.
class Schedule {
 public:
  explicit Schedule(const plan::Plan& plan) : lanes_(static_cast<int>(plan.of_rank[0].lanes.size())) {
    std::vector<std::size_t> next(static_cast<std::size_t>(plan.ranks) * lanes_, 0);
    time_.assign(next.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int row = 0; row < static_cast<int>(next.size()); ++row) {
        const std::vector<Step>& steps = plan.of_rank[row / lanes_].lanes[row % lanes_].steps;
        while (next[row] < steps.size() && run(row, steps[next[row]])) {
          ++next[row];
          moved = true;
        }
      }
    }
    for (const double t : time_) end = std::max(end, t);
  }

  std::vector<Box> boxes;
  std::vector<Arrow> arrows;
  double end = 0;

 private:
  int row_of(int rank, int row) const { return rank * lanes_ + row % lanes_; }

  bool run(int row, const Step& step) {
    const int rank = row / lanes_;
    double& now = time_[row];
    if (step.guard != plan::Guard::always) return true;  // not in a call of one round
    switch (step.kind) {
      case StepKind::open: return true;
      case StepKind::signal:
        signals_[{rank, step.peer, row % lanes_}].push_back({now, put_since_signal_[{row, step.peer}]});
        put_since_signal_[{row, step.peer}] = false;
        return true;
      case StepKind::wait: {
        auto& pending = signals_[{step.peer, rank, row % lanes_}];
        if (pending.empty()) return false;
        const auto [at, with_data] = pending.front();
        pending.pop_front();
        now = std::max(now, at);
        if (!with_data) arrows.push_back({row_of(step.peer, row), at, row, now, "signal"});
        return true;
      }
      case StepKind::put:
        boxes.push_back({row, now, &step});
        arrows.push_back({row, now + 0.5, row_of(step.peer, row), now + 1, "put"});
        put_since_signal_[{row, step.peer}] = true;
        break;
      case StepKind::copy:
      case StepKind::reduce:
        boxes.push_back({row, now, &step});
        for (const Range& range : step.sources) {
          if (range.rank != rank) arrows.push_back({row_of(range.rank, row), now, row, now + 0.1, "read"});
        }
        for (const Range& range : step.destinations) {
          if (range.rank != rank) arrows.push_back({row, now + 0.9, row_of(range.rank, row), now + 1, "read"});
        }
        break;
    }
    now += 1;
    return true;
  }

  int lanes_;
  std::vector<double> time_;
  std::map<std::tuple<int, int, int>, std::deque<std::pair<double, bool>>>
      signals_;  // from, to, lane: when, behind a put
  std::map<std::pair<int, int>, bool> put_since_signal_;
};

double x_of(double time) { return kLeft + time * kUnit; }
double y_of(int row) { return kTop + row * kRow; }

std::string pieces_of(const Range& range) {
  static constexpr const char* letters[] = {"in", "out", "slot", "pub"};
  const char* letter = letters[static_cast<int>(range.space)];
  if (range.count == 1) return fmt::format("{} {}", letter, range.first);
  return fmt::format("{} {}-{}", letter, range.first, range.first + range.count - 1);
}

const char* kind_of(const Step& step) {
  if (step.kind == StepKind::put) return "put";
  return step.kind == StepKind::copy ? "copy" : "reduce";
}

constexpr const char* kHead =
    "<style>text{{font:11px sans-serif;fill:#222}}.small{{font-size:9px}}.title{{font-size:14px;font-weight:bold}}"
    ".box{{stroke:#333;stroke-width:.6}}.b-put{{fill:#a9cce3}}.b-copy{{fill:#d5dbdb}}.b-reduce{{fill:#f5cba7}}"
    "line{{stroke-width:1.2}}.put{{stroke:#1a5276;marker-end:url(#head)}}.read{{stroke:#a04000;stroke-dasharray:3 2;"
    "marker-end:url(#head)}}.signal{{stroke:#999;stroke-width:.7;marker-end:url(#head)}}.rail{{stroke:#ccc}}</style>"
    "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
    "orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"#444\"/></marker></defs>\n";

}  // namespace

std::string svg_of(const plan::Plan& plan) {
  const Schedule schedule(plan);
  const int lanes = static_cast<int>(plan.of_rank[0].lanes.size());
  const int rows = plan.ranks * lanes;
  const double width = x_of(std::max(schedule.end, 3.0)) + 40;
  const double height = y_of(rows) + 10;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n",
      width, height);
  const auto out = std::back_inserter(svg);
  fmt::format_to(out, kHead);
  fmt::format_to(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
  fmt::format_to(out, "<text class=\"title\" x=\"12\" y=\"22\">{} {}, {} ranks, {} pieces</text>\n",
                 name_of(plan.collective), plan.algorithm, plan.ranks, plan.pieces);
  for (int row = 0; row < rows; ++row) {
    const std::string name =
        lanes == 1 ? fmt::format("rank {}", row) : fmt::format("rank {} lane {}", row / lanes, row % lanes);
    fmt::format_to(out,
                   "<text x=\"12\" y=\"{:.0f}\">{}</text><line class=\"rail\" x1=\"{:.0f}\" y1=\"{:.0f}\" "
                   "x2=\"{:.0f}\" y2=\"{:.0f}\"/>\n",
                   y_of(row) + 4, name, kLeft, y_of(row), x_of(schedule.end), y_of(row));
  }
  for (const Box& box : schedule.boxes) {
    const double x = x_of(box.begin) + 1;
    const double y = y_of(box.row);
    const Range& from = box.step->sources.back();
    const Range& to = box.step->destinations.front();
    fmt::format_to(out,
                   "<rect class=\"box b-{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\"/>",
                   kind_of(*box.step), x, y - kBox / 2, kUnit - 2, kBox);
    fmt::format_to(out, "<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + 3, y - 4, kind_of(*box.step));
    fmt::format_to(out, "<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 3, y + 9,
                   pieces_of(box.step->kind == StepKind::put ? from : to));
  }
  for (const Arrow& arrow : schedule.arrows) {
    const double down = arrow.to_row > arrow.from_row ? kBox / 2 : -kBox / 2;
    fmt::format_to(out, "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", arrow.style,
                   x_of(arrow.from), y_of(arrow.from_row) + down, x_of(arrow.to), y_of(arrow.to_row) - down);
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace tutti::cli
