#include "base/clock.h"

namespace tutti {

namespace {

struct Calibration {
  std::uint64_t ticks0;
  std::int64_t ns0;
  double ns_per_tick;
};

Calibration calibrate() {
  const std::int64_t ns0 = now_ns();
  const std::uint64_t t0 = ticks();
  std::int64_t ns1 = ns0;
  while (ns1 - ns0 < 2'000'000) ns1 = now_ns();
  return {t0, ns0, static_cast<double>(ns1 - ns0) / static_cast<double>(ticks() - t0)};
}

}  // namespace

std::int64_t ns_of_ticks(std::uint64_t t) {
  static const Calibration c = calibrate();
  return c.ns0 +
         static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(t - c.ticks0)) * c.ns_per_tick);
}

}  // namespace tutti
