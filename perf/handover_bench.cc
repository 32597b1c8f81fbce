// What it costs to hand a block from one core to another through shared slots, and how that depends on when a slot is
// used again. This is why the slots of large messages rotate through all of scratch ("Slot rotation" in
// collectives/executor/host/plan_walker.h), why they are stored past the caches at times (slot_stores.h there), and why
// the kernel's cross-memory attach is tried at start-up before it is used.
//
// One thread copies a block into a slot, another copies it out; they take turns, so each time is that of one copy
// alone.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cores.h"
#include "base/cpu.h"
#include "base/standard_streams.h"
#include "collectives/reduce/reduce.h"
#include "transport/shm/cross_memory.h"

namespace {

using tutti::now_ns;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

struct Times {
  double in_us = 0;
  double out_us = 0;
};

double median_us(std::vector<std::int64_t>& ns) {
  std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2), ns.end());
  return static_cast<double>(ns[ns.size() / 2]) / 1e3;
}

void wait_for(const std::atomic<int>& counter, int value) {
  while (counter.load(std::memory_order_acquire) < value) tutti::cpu_relax();
}

/// Blocks go through `slots` slots in turn; `past_caches`: the stores into them.
Times hand_over(std::size_t bytes, std::size_t slots, bool past_caches) {
  const int blocks = static_cast<int>(std::clamp<std::size_t>(256 * kMiB / bytes, 2 * slots, 4000));
  std::vector<char> shared(bytes * slots, 1);
  alignas(64) std::atomic<int> filled{0};
  alignas(64) std::atomic<int> emptied{0};
  const std::vector<int> cores = tutti::allowed_cores();
  std::vector<std::int64_t> in, out;
  std::thread receiver([&] {
    tutti::bind_to(std::span(cores).last(1));
    std::vector<char> to(bytes, 2);
    for (int i = 1; i <= blocks; ++i) {
      wait_for(filled, i);
      const std::int64_t begin = now_ns();
      std::memcpy(to.data(), &shared[static_cast<std::size_t>(i) % slots * bytes], bytes);
      out.push_back(now_ns() - begin);
      emptied.store(i, std::memory_order_release);
    }
  });
  std::thread sender([&] {
    tutti::bind_to(std::span(cores).first(1));
    std::vector<char> from(bytes, 3);
    for (int i = 1; i <= blocks; ++i) {
      const std::int64_t begin = now_ns();
      void* slot = &shared[static_cast<std::size_t>(i) % slots * bytes];
      tutti::reduce::copy(std::span<void* const>(&slot, 1), from.data(), bytes, past_caches);
      in.push_back(now_ns() - begin);
      filled.store(i, std::memory_order_release);
      wait_for(emptied, i);
    }
  });
  sender.join();
  receiver.join();
  return {median_us(in), median_us(out)};
}

double attach_us(std::size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  std::vector<std::int64_t> ns;
  for (int i = 0; i < 200; ++i) {
    const std::int64_t begin = now_ns();
    const tutti::Status read =
        tutti::transport::cross_memory_read(getpid(), reinterpret_cast<std::uint64_t>(from.data()), to.data(), bytes);
    if (!read.ok()) return 0;
    ns.push_back(now_ns() - begin);
  }
  return median_us(ns);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What it costs to hand a block over between two cores, through slots and by the kernel.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("handover_bench", app.exit(error) == 0 ? 0 : 6);
  }
  fmt::print(
      "Microseconds to copy a block into a slot, and out of it on another core, by how much memory the slots are; "
      "and one copy by the kernel (0: not allowed).\n\n| block | two slots | 1 MiB | 2 MiB | 4 MiB | 4 MiB, stores "
      "past the caches | cross-memory attach |\n"
      "|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const std::size_t bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB, kMiB}) {
    fmt::print("| {} KiB ", bytes / kKiB);
    const auto print = [bytes](std::size_t memory, bool past_caches) {
      const Times times = hand_over(bytes, std::max<std::size_t>(2, memory / bytes), past_caches);
      fmt::print("| {:.2f} + {:.2f} ", times.in_us, times.out_us);
    };
    for (const std::size_t memory : {std::size_t{0}, kMiB, 2 * kMiB, 4 * kMiB}) print(memory, false);
    print(4 * kMiB, true);
    fmt::print("| {:.2f} |\n", attach_us(bytes));
  }
  return tutti::end_of_output("handover_bench", 0);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
