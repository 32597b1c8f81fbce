// Which stream each rank of this process uses in a communicator, where ranks share a GPU. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

namespace tutti {

class StreamRegistry {
 public:
  /// `communicator`: a number of its own in this process, the same for all of its ranks; `device`: this rank's GPU.
  StreamRegistry(std::uint64_t communicator, int rank, int device) : key_(communicator, rank), device_(device) {}
  ~StreamRegistry() {
    const std::lock_guard lock(all().mutex);
    all().streams.erase(key_);
  }
  StreamRegistry(const StreamRegistry&) = delete;
  StreamRegistry& operator=(const StreamRegistry&) = delete;

  /// Notes that this rank uses `stream` now; another rank that used it last, or -1. By the thread that puts the call
  /// into the stream.
  int use(const void* stream) {
    const std::lock_guard lock(all().mutex);
    const Used& own = all().streams[key_] = used(stream);
    for (const auto& [key, theirs] : all().streams) {
      if (key.first == key_.first && key.second != key_.second && theirs == own) return key.second;
    }
    return -1;
  }

 private:
  // Both default streams are another one on each GPU, and one of them for each thread.
  using Used = std::tuple<const void*, int, std::thread::id>;
  static inline const void* const kLegacy = reinterpret_cast<const void*>(1);
  static inline const void* const kPerThread = reinterpret_cast<const void*>(2);

  Used used(const void* stream) const {
    return {stream == kLegacy ? nullptr : stream, device_,
            stream == kPerThread ? std::this_thread::get_id() : std::thread::id()};
  }

  struct All {
    std::mutex mutex;
    std::map<std::pair<std::uint64_t, int>, Used> streams;
  };
  static All& all() {
    static All all;
    return all;
  }

  const std::pair<std::uint64_t, int> key_;
  const int device_;
};

}  // namespace tutti
