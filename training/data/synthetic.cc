#include "training/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include "training/data/random.h"
#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

constexpr int kClasses = 10;
constexpr int kDigitSide = 28, kShapeSide = 32;

struct Point {
  double x = 0, y = 0;
};

/// Maps a pixel to the plane in which a picture is defined, about -1 to 1 both ways.
struct View {
  View(Random& random, int side, double extent, double turn, double shift) {
    const double scale = extent * random.between(0.8, 1.1);
    centre = {side / 2.0 + random.between(-shift, shift), side / 2.0 + random.between(-shift, shift)};
    // A rotation from the tangent t of half its angle, which needs no sine.
    const double t = random.between(-turn, turn);
    cosine = (1 - t * t) / (1 + t * t) / scale;
    sine = 2 * t / (1 + t * t) / scale;
  }
  Point at(double x, double y) const {
    x -= centre.x;
    y -= centre.y;
    return {x * cosine + y * sine, y * cosine - x * sine};
  }
  Point centre;
  double cosine = 1, sine = 0;
};

/// Strokes of each digit: points "xy" on a grid 6 wide and 8 high, y down; a stroke is a chain of them.
constexpr std::array<std::array<std::string_view, 2>, kClasses> kStrokes = {{
    {"20 40 62 66 48 28 06 02 20", ""},
    {"12 30 38", "18 58"},
    {"02 20 40 62 63 08 68", ""},
    {"01 20 40 62 54 34", "54 66 48 28 07"},
    {"48 40 06 66", ""},
    {"60 10 04 43 65 66 48 28 07", ""},
    {"50 21 04 06 28 48 66 65 44 24 05", ""},
    {"00 60 28", "14 54"},
    {"34 13 11 20 40 51 53 34 65 67 48 28 07 05 34", ""},
    {"63 44 24 03 02 20 40 62 64 47 18", ""},
}};

struct Segment {
  Point from, to;
};

std::vector<Segment> segments_of(int digit) {
  std::vector<Segment> segments;
  for (std::string_view stroke : kStrokes[static_cast<std::size_t>(digit)]) {
    const auto point = [&](std::size_t i) {
      return Point{(stroke[i] - '3') / 4.0, (stroke[i + 1] - '4') / 4.0};  // the grid's centre is the plane's
    };
    for (std::size_t i = 0; i + 3 < stroke.size(); i += 3) segments.push_back({point(i), point(i + 3)});
  }
  return segments;
}

double distance(Point p, const Segment& segment) {
  const double dx = segment.to.x - segment.from.x, dy = segment.to.y - segment.from.y;
  const double along = ((p.x - segment.from.x) * dx + (p.y - segment.from.y) * dy) / (dx * dx + dy * dy);
  const double t = std::clamp(along, 0.0, 1.0);
  const double x = p.x - segment.from.x - t * dx, y = p.y - segment.from.y - t * dy;
  return std::sqrt(x * x + y * y);
}

bool is_inside(int shape, Point p) {
  constexpr double kRoot3 = 1.7320508075688772, kRootHalf = 0.7071067811865476;
  const double x = std::abs(p.x), y = std::abs(p.y), radius = x * x + y * y, side = std::max(x, y);
  const auto is_plus = [](double a, double b) { return std::min(a, b) < 0.28 && std::max(a, b) < 0.95; };
  const auto is_odd = [](double a) { return static_cast<int>(std::floor((a + 0.9) / 0.36)) % 2 != 0; };
  switch (shape) {
    case 0: return radius < 0.81;
    case 1: return radius < 0.9 && radius > 0.3;
    case 2: return side < 0.8;
    case 3: return side < 0.9 && side > 0.52;
    case 4: return p.y < 0.6 && p.y > kRoot3 * x - 0.95;
    case 5: return is_plus(x, y);
    case 6: return is_plus(std::abs(p.x + p.y) * kRootHalf, std::abs(p.x - p.y) * kRootHalf);
    case 7: return side < 0.9 && !is_odd(p.y);
    case 8: return side < 0.9 && !is_odd(p.x);
    default: return side < 0.9 && is_odd(p.x) == is_odd(p.y);
  }
}

std::uint8_t as_byte(double value) {  // 0 to 1
  return static_cast<std::uint8_t>(std::clamp(value, 0.0, 1.0) * 255 + 0.5);
}

void render_digit(Random& random, int digit, std::uint8_t* pixels) {
  const std::vector<Segment> segments = segments_of(digit);
  const View view(random, kDigitSide, /*extent=*/9, /*turn=*/0.12, /*shift=*/2.5);
  const double half_width = random.between(0.09, 0.17), edge = 0.12;
  const double light = random.between(0.7, 1), noise = random.between(0, 0.1);
  for (int row = 0; row < kDigitSide; ++row) {
    for (int column = 0; column < kDigitSide; ++column) {
      const Point p = view.at(column + 0.5, row + 0.5);
      double nearest = 10;
      for (const Segment& segment : segments) nearest = std::min(nearest, distance(p, segment));
      const double ink = std::clamp((half_width - nearest) / edge + 0.5, 0.0, 1.0);
      *pixels++ = as_byte(light * ink + noise * random.about_normal());
    }
  }
}

void render_shape(Random& random, int shape, std::uint8_t* pixels) {
  const View view(random, kShapeSide, /*extent=*/12, /*turn=*/0.12, /*shift=*/3);
  std::array<double, 3> inside, outside;
  double difference;
  do {  // until the two colours can be told apart
    difference = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      inside[c] = random.uniform();
      outside[c] = random.uniform();
      difference += std::abs(inside[c] - outside[c]);
    }
  } while (difference < 0.75);
  const double noise = random.between(0.02, 0.1);
  for (int row = 0; row < kShapeSide; ++row) {
    for (int column = 0; column < kShapeSide; ++column) {
      double share = 0;  // of four points in the pixel
      for (int i = 0; i < 4; ++i) {
        share += is_inside(shape, view.at(column + 0.25 + 0.5 * (i % 2), row + 0.25 + 0.5 * (i / 2))) ? 0.25 : 0;
      }
      for (std::size_t c = 0; c < 3; ++c) {
        const double value = share * inside[c] + (1 - share) * outside[c] + noise * random.about_normal();
        pixels[(static_cast<int>(c) * kShapeSide + row) * kShapeSide + column] = as_byte(value);
      }
    }
  }
}

using Render = void (*)(Random& random, int label, std::uint8_t* pixels);

Images render(const char* who, std::int64_t count, std::uint64_t seed, std::int64_t channels, std::int64_t side,
              Render render_one) {
  if (count < 0) throw Error(Code::invalid_argument, fmt::format("{}: a count of {}", who, count));
  Images images{torch::empty({count, channels, side, side}, torch::kUInt8), torch::empty({count}, torch::kUInt8)};
  auto* pixels = images.pixels.data_ptr<std::uint8_t>();
  auto* labels = images.labels.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i, pixels += channels * side * side) {
    Random random(seed, static_cast<std::uint64_t>(i));
    const int label = static_cast<int>(random.below(kClasses));
    labels[i] = static_cast<std::uint8_t>(label);
    render_one(random, label, pixels);
  }
  return images;
}

}  // namespace

Images synthetic_digits(std::int64_t count, std::uint64_t seed) {
  return render("synthetic_digits", count, seed, 1, kDigitSide, render_digit);
}

Images synthetic_shapes(std::int64_t count, std::uint64_t seed) {
  return render("synthetic_shapes", count, seed, 3, kShapeSide, render_shape);
}

}  // namespace tutti::training
