#include "tests/chaos/scenario.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "tests/chaos/ranks.h"

namespace tutti::chaos {

const char* name_of(Fault fault) {
  constexpr std::array<const char*, kFaults> kNames = {"none",       "kill",      "stop",       "stop_long",
                                                       "slow",       "refused",   "open_files", "abort",
                                                       "wrong_call", "full_disk", "loss",       "cut"};
  return kNames[static_cast<std::size_t>(fault)];
}

const char* name_of(Work work) {
  constexpr std::array<const char*, 4> kNames = {"collectives", "messages", "ddp", "fsdp"};
  return kNames[static_cast<std::size_t>(work)];
}

std::string Scenario::text() const {
  std::string text =
      fmt::format("seed {}: {} ranks, {}, {} x {}, {}", seed, ranks, network, calls, name_of(work), name_of(fault));
  if (fault == Fault::none || fault == Fault::loss) return text;
  if (fault != Fault::cut) text += fmt::format(" of rank {}", victim);
  if (fault == Fault::refused) {
    text +=
        fmt::format(" ({}: {})", refusable_calls()[static_cast<std::size_t>(system_call)].name, std::strerror(error));
  }
  return text + fmt::format(" at {:.1f} ms", static_cast<double>(at_us) / 1000);
}

Scenario draw(std::uint64_t seed, const Menu& menu) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t bound) { return static_cast<int>(random() % bound); };
  Scenario s;
  s.seed = seed;
  s.ranks = 2 + below(3);
  s.hosts = menu.hosts && (below(2) == 0 || menu.lossy);
  s.deadline = menu.deadline;
  s.network = s.hosts ? menu.network : "shm";
  s.work = menu.training && below(4) == 0 ? (below(2) == 0 ? Work::ddp : Work::fsdp)
           : below(3) == 0                ? Work::messages
                                          : Work::collectives;
  const bool trains = s.work == Work::ddp || s.work == Work::fsdp;
  s.calls = trains ? 5 + below(10) : 20 + below(300);
  std::vector<Fault> faults;
  for (int fault = 0; fault < kFaults; ++fault) {
    const auto one = static_cast<Fault>(fault);
    const bool of_link = one == Fault::loss || one == Fault::cut;
    if (menu.lossy ? one != Fault::loss : of_link && !(menu.links && s.hosts)) continue;
    if (trains && one == Fault::wrong_call) continue;
    faults.push_back(one);
  }
  s.fault = faults[static_cast<std::size_t>(below(faults.size()))];
  s.victim = below(static_cast<std::uint64_t>(s.ranks));
  // Mostly while the program runs, at times while the communicator is made.
  s.at_us = below(5) == 0 ? below(4'000) : 4'000 + below(trains ? 300'000 : 60'000);
  s.system_call = below(refusable_calls().size());
  constexpr std::array kErrors = {EPERM, ENOSYS, EMFILE, ENOMEM};
  s.error = kErrors[static_cast<std::size_t>(below(kErrors.size()))];
  return s;
}

}  // namespace tutti::chaos
