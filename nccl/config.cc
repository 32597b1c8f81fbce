#include "nccl/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace tutti::nccl {
namespace {

struct Range {
  const char* name;
  int ncclConfig_t::*field;
  int least;
  int most;
};

// Bounds as in the user's guide, "ncclConfig_t".
constexpr Range kRanges[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, INT_MAX},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1},
    {"trafficClass", &ncclConfig_t::trafficClass, 0, INT_MAX},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, 3},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, 1024},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1},
};

ncclConfig_t undefined() {
  ncclConfig_t config{};
  for (const Range& range : kRanges) config.*range.field = kUndefinedInt;
  return config;
}

}  // namespace

Outcome read_config(const char* function, const ncclConfig_t* given, const Config& inherited, Config& config) {
  config = given == nullptr ? inherited : Config{};
  if (given == nullptr) return {};
  constexpr std::size_t kLeast = offsetof(ncclConfig_t, cgaClusterSize);  // what the first version had
  if (given->magic != kConfigMagic || given->size < kLeast) {
    return {ncclInvalidArgument,
            fmt::format("{}: config was not made by NCCL_CONFIG_INITIALIZER (its magic is {:#x}, its size {})",
                        function, given->magic, given->size)};
  }
  ncclConfig_t known = undefined();
  std::memcpy(&known, given, std::min(given->size, sizeof(known)));
  for (const Range& range : kRanges) {
    const int value = known.*range.field;
    if (value == kUndefinedInt || (value >= range.least && value <= range.most)) continue;
    return {ncclInvalidArgument, fmt::format("{}: config.{} is {}; expected {} to {}", function, range.name, value,
                                             range.least, range.most)};
  }
  if (known.minCTAs != kUndefinedInt && known.maxCTAs != kUndefinedInt && known.minCTAs > known.maxCTAs) {
    return {ncclInvalidArgument, fmt::format("{}: config.minCTAs is {} and config.maxCTAs {}; expected no less",
                                             function, known.minCTAs, known.maxCTAs)};
  }
  if (known.netName != nullptr) {
    return {ncclInvalidUsage,
            fmt::format("{}: config.netName is '{}'; this library chooses among its own transports, expected null",
                        function, known.netName)};
  }
  if (known.blocking != kUndefinedInt) config.blocking = known.blocking != 0;
  if (known.commName != nullptr) config.name = known.commName;
  return {};
}

}  // namespace tutti::nccl
