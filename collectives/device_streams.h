// Which stream each rank of this process uses in a communicator, where ranks share a GPU. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace tutti {

class DeviceStreams {
 public:
  /// `communicator`: a number of its own in this process, the same for all of its ranks.
  DeviceStreams(std::uint64_t communicator, int rank) : key_(communicator, rank) {}
  ~DeviceStreams() {
    const std::lock_guard lock(all().mutex);
    all().streams.erase(key_);
  }
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  /// Notes that this rank uses `stream` now; another rank that used it last, or -1.
  int use(const void* stream) {
    if (stream == kPerThread) return -1;  // each thread has its own
    const std::lock_guard lock(all().mutex);
    all().streams[key_] = stream == kLegacy ? nullptr : stream;
    for (const auto& [key, theirs] : all().streams) {
      if (key.first == key_.first && key.second != key_.second && theirs == all().streams[key_]) return key.second;
    }
    return -1;
  }

 private:
  static inline const void* const kLegacy = reinterpret_cast<const void*>(1);
  static inline const void* const kPerThread = reinterpret_cast<const void*>(2);

  struct All {
    std::mutex mutex;
    std::map<std::pair<std::uint64_t, int>, const void*> streams;
  };
  static All& all() {
    static All all;
    return all;
  }

  const std::pair<std::uint64_t, int> key_;
};

}  // namespace tutti
