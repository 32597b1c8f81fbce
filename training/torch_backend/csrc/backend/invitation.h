// The exchange of Tutti's unique id between the ranks of a group, through torch's store. The store may hold keys of
// earlier makings of the group (destroy and init, torchrun's restarts), which some ranks have not seen.
//
// How: each rank but the first draws a word, sets it as "join/<rank>" and waits for "id/<word>". The first rank makes
//   the id and answers every word that it sees, until its group is made. A rank that died and came again has drawn
//   another word.
// Threads: the first rank answers on a thread of its own; stores take calls of several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "csrc/backend/backend.h"

namespace tutti_torch {

struct Invitation {
  std::string making;  // another one for each making of a group
  tutti::UniqueId id;
};

/// A random word of 64 bits, which no other rank draws.
std::string random_nonce();

/// The first rank's answers, as long as this lives.
class Invitations {
 public:
  Invitations(c10::intrusive_ptr<c10d::Store> store, int size, Invitation invitation);
  ~Invitations();
  Invitations(const Invitations&) = delete;
  Invitations& operator=(const Invitations&) = delete;

 private:
  void answer_until_ended();

  const c10::intrusive_ptr<c10d::Store> store_;
  const int size_;
  const Invitation invitation_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

/// The other ranks'. Errors: DistBackendError, when the first rank has not answered within the group's timeout.
Invitation wait_for_invitation(c10d::Store& store, int rank, const TuttiBackend::Options& options);

/// "the group [0, 3]", by the job's ranks; "the default group".
std::string name_of(const TuttiBackend::Options& options);

/// Returns the group's name as Tutti takes names: its description where it has one, else PyTorch's name.
std::string group_name(const c10d::Backend::Options& options);

/// "[0, 3]".
std::string text_of(const std::vector<std::uint64_t>& ranks);

}  // namespace tutti_torch
