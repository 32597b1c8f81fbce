// One scenario of the campaign: a job, a random program, and a fault; all of it follows from a seed.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::chaos {

enum class Fault {
  none,
  kill,        // a rank, at a random moment
  stop,        // a rank for a moment, shorter than the deadline
  stop_long,   // a rank until the others have given up
  slow,        // a rank computes between its calls
  refused,     // a system call, from a random moment on
  open_files,  // no more descriptors than there are, from a random moment on
  abort,       // from a second thread of a random rank
  wrong_call,  // one rank gives another count
  full_disk,   // for the flight recorder, and an abort
  loss,        // of packets between hosts
  cut,         // the link between hosts, for good
};
inline constexpr int kFaults = 12;
const char* name_of(Fault fault);

enum class Work { collectives, messages, ddp, fsdp };
const char* name_of(Work work);

struct Scenario {
  std::uint64_t seed = 0;
  int ranks = 2;
  bool hosts = false;   // of two hosts, which go by `network`
  std::string network;  // "shm" where there is one host
  Work work = Work::collectives;
  int calls = 50;
  Fault fault = Fault::none;
  int victim = 0;
  std::int64_t at_us = 0;  // from the start of the ranks
  int system_call = 0;     // place in refusable_calls(), for Fault::refused
  int error = 0;
  double deadline = 3;  // of every wait, seconds
  /// Extra time on a busy machine, for it and for a failure.
  double slack() const { return deadline * 5 / 3; }

  std::string text() const;
};

/// The choices of the campaign.
struct Menu {
  bool training = true;
  bool hosts = true;
  bool links = false;  // the network may be disturbed: the campaign has one of its own
  bool lossy = false;  // it loses packets by itself: each scenario is of a loss
  std::string network = "tcp";
  double deadline = 3;
};
Scenario draw(std::uint64_t seed, const Menu& menu);

}  // namespace tutti::chaos
