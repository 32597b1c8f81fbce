// A thread block played by one host thread: the walker of walker-inl.h for tests and for a fake driver. Atomics are the
// standard's, so ThreadSanitizer judges the same protocol that the device runs.
//
//   std::thread([&] { walk_on_host(arguments, {.index = 0, .blocks = 1}); });   // one thread for each block
//
// Threads: one for each block. The clock may be set from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "collectives/executor/cuda/kernels.h"

#define TUTTI_BOTH static inline
#define TUTTI_MEMBER inline
#define TUTTI_SLOW
#define TUTTI_SLOW_FREE inline
#include "collectives/executor/cuda/p2p-inl.h"
#include "collectives/executor/cuda/walker-inl.h"

namespace tutti::executor::cuda {

/// One iteration of a long wait: yields, and at times sleeps, since with more threads than cores a thread that only
/// yields delays the threads that it waits for.
inline void give_way(unsigned& turns) {
  if (++turns % 16 != 0) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

struct HostPlace {
  std::uint32_t index = 0;
  std::uint32_t blocks = 1;
  std::function<std::uint64_t()> clock;  // ns; empty: the machine's
  std::function<void()> relax;           // in long waits; empty: give_way()
  std::function<void()> disturb;         // before every access to a shared word; for tests
};

/// `Shared`: what its threads share.
template <class Shared>
class HostBlockOf {
 public:
  static constexpr std::uint32_t kTurnsBetweenLooks = 8;

  explicit HostBlockOf(const HostPlace& place) : place_(place) {}

  std::uint32_t thread() const { return 0; }
  std::uint32_t threads() const { return 1; }
  std::uint32_t index() const { return place_.index; }
  std::uint32_t blocks() const { return place_.blocks; }
  Shared& shared() const { return shared_; }
  void sync() const {}
  bool any(bool value) const { return value; }

  std::uint64_t load(const std::uint64_t* from) const { return word(from).load(std::memory_order_relaxed); }
  std::uint64_t load_acquire(const std::uint64_t* from) const { return word(from).load(std::memory_order_acquire); }
  void store(std::uint64_t* to, std::uint64_t value) const { word(to).store(value, std::memory_order_relaxed); }
  void store_release(std::uint64_t* to, std::uint64_t value) const { word(to).store(value, std::memory_order_release); }
  void load_line(std::uint64_t from, std::uint64_t& low, std::uint64_t& high) const {
    low = load(reinterpret_cast<const std::uint64_t*>(from));
    high = load(reinterpret_cast<const std::uint64_t*>(from + 8));
  }
  void store_line(std::uint64_t to, std::uint64_t low, std::uint64_t high) const {
    store(reinterpret_cast<std::uint64_t*>(to), low);
    store(reinterpret_cast<std::uint64_t*>(to + 8), high);
  }
  void fence_alias() const {}
  std::uint64_t add(std::uint64_t* to, std::uint64_t value) const {
    return word(to).fetch_add(value, std::memory_order_acq_rel);
  }
  bool claim(std::uint64_t* at) const {
    std::uint64_t free = 0;
    return word(at).compare_exchange_strong(free, 1, std::memory_order_acq_rel);
  }
  std::uint64_t now_ns() const { return place_.clock ? place_.clock() : static_cast<std::uint64_t>(tutti::now_ns()); }
  void relax() const { place_.relax ? place_.relax() : give_way(turns_); }

 private:
  std::atomic_ref<std::uint64_t> word(const std::uint64_t* at) const {
    if (place_.disturb) place_.disturb();
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(at));
  }

  const HostPlace& place_;
  mutable unsigned turns_ = 0;
  mutable Shared shared_;
};

using HostBlock = HostBlockOf<Shared>;

/// The body of a kernel (a number of kernels.h), as block `place` of it.
void walk_on_host(int kernel, const LaunchArguments& arguments, const HostPlace& place);
void run_p2p_on_host(const P2pArguments& arguments, const HostPlace& place);

}  // namespace tutti::executor::cuda
