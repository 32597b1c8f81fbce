#include "nccl/config.h"

#include <climits>

namespace tutti::nccl {
namespace {

struct Field {
  const char* name;
  int ncclConfig_t::*value;
  int least;
  int most;
  unsigned since;  // the version whose header has it first
};

// Bounds as in the user's guide, "ncclConfig_t".
constexpr Field kFields[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1, 21400},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8, 21700},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, INT_MAX, 21700},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX, 21700},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1, 21800},
    {"trafficClass", &ncclConfig_t::trafficClass, 0, INT_MAX, 22500},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1, 22700},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, 3, 22700},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1, 22700},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX, 22700},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, 1024, 22800},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1, 22800},
    {"graphUsageMode", &ncclConfig_t::graphUsageMode, 0, 2, 22900},
    {"numRmaCtx", &ncclConfig_t::numRmaCtx, 1, INT_MAX, 22900},
    {"maxP2pPeers", &ncclConfig_t::maxP2pPeers, INT_MIN, INT_MAX, 23000},
    {"graphStreamOrdering", &ncclConfig_t::graphStreamOrdering, 0, 1, 23005},
    {"launchOrderImplicit", &ncclConfig_t::launchOrderImplicit, 0, 1, 23100},
    {"numRmaSig", &ncclConfig_t::numRmaSig, 1, INT_MAX, 23100},
    {"rmaEagerInit", &ncclConfig_t::rmaEagerInit, 0, 1, 23100},
    {"hostCftMode", &ncclConfig_t::hostCftMode, 1, 3, 23100},
    {"nvlsHostMode", &ncclConfig_t::nvlsHostMode, 0, INT_MAX, 23100},
};

ncclConfig_t undefined() {
  ncclConfig_t config{};
  for (const Field& field : kFields) config.*field.value = kUndefinedInt;
  return config;
}

/// The struct may end with padding, where a later header has a field.
void forget_padding(ncclConfig_t& config) {
  for (const Field& field : kFields) {
    if (config.version < field.since) config.*field.value = kUndefinedInt;
  }
}

}  // namespace

Outcome read_config(const char* function, const ncclConfig_t* given, const Config& inherited, Config& config) {
  config = given == nullptr ? inherited : Config{};
  if (given == nullptr) return {};
  constexpr std::size_t kLeast = offsetof(ncclConfig_t, cgaClusterSize);  // what the first version had
  ncclConfig_t known = undefined();
  if (Outcome read = read_struct(function, "NCCL_CONFIG_INITIALIZER", *given, kLeast, known); !read.ok()) return read;
  forget_padding(known);
  for (const Field& field : kFields) {
    const int value = known.*field.value;
    if (value == kUndefinedInt || (value >= field.least && value <= field.most)) continue;
    return {ncclInvalidArgument, fmt::format("{}: config.{} is {}; expected {} to {}", function, field.name, value,
                                             field.least, field.most)};
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
