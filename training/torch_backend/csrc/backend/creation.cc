#include "csrc/backend/creation.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "csrc/backend/invitation.h"
#include "csrc/base/signals.h"

namespace tutti_torch {

namespace {

/// Calls `body` on a thread of its own, and waits for it seeing signals. After a signal that raises, the thread is left
/// alone: it ends by the deadline that `body` has.
template <class Body>
auto beside(Body body) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
    std::optional<decltype(body())> result;
  };
  auto shared = std::make_shared<Shared>();
  std::thread([shared, body = std::move(body)]() mutable {
    std::optional<decltype(body())> result;
    std::exception_ptr error;
    try {
      result.emplace(body());
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->error = error;
    shared->done = true;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  wait_with_signals(shared->changed, lock, Clock::time_point::max(), [&] { return shared->done; });
  if (shared->error) std::rethrow_exception(shared->error);
  return std::move(*shared->result);
}

}  // namespace

c10::intrusive_ptr<TuttiBackend> create_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const c10::intrusive_ptr<TuttiBackend::Options>& options) {
  struct Made {
    tutti::Communicator collectives;
    tutti::Communicator transfers;
    std::string making;
  };
  Made made = translated([&] {
    return beside([store, rank, size, options] {
      // Groups that are made side by side may share a name in the store; those of other ranks do not meet.
      const auto named_store =
          c10::make_intrusive<c10d::PrefixStore>("tutti/" + text_of(options->global_ranks_in_group), store);
      tutti::Options how;
      how.timeout = options->timeout;
      how.interrupted = interrupted;
      if (!options->global_ranks_in_group.empty()) how.name = group_name(*options);  // else it is the default group
      how.job_ranks.assign(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end());
      const Invitation invitation = rank == 0 ? Invitation{random_nonce(), tutti::Communicator::make_unique_id()}
                                              : wait_for_invitation(*named_store, rank, *options);
      std::optional<Invitations> invitations;
      if (rank == 0 && size > 1) invitations.emplace(named_store, size, invitation);
      Made made;
      made.making = invitation.making;
      try {
        made.collectives = tutti::Communicator::from_unique_id(invitation.id, rank, size, how);
      } catch (const tutti::Error& error) {
        if (error.code() != tutti::Code::timeout) throw;
        throw tutti::Error(error.code(), "making " + name_of(*options) + " timed out: " + error.what());
      }
      invitations.reset();  // before any rank can come through the next call, and make the group again
      made.transfers = made.collectives.split(0, rank);
      return made;
    });
  });
  // Keys of this making alone.
  const auto own_store = c10::make_intrusive<c10d::PrefixStore>("tutti/" + made.making, store);
  return c10::make_intrusive<TuttiBackend>(own_store, rank, size, std::move(made.collectives),
                                           std::move(made.transfers), options);
}

}  // namespace tutti_torch
