#include "creation.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "signals.h"

namespace tutti_torch {

namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

tutti::UniqueId exchange_id(c10d::Store& store, int rank, std::chrono::milliseconds timeout) {
  const std::string key = "id";
  tutti::UniqueId id;
  if (rank == 0) {
    id = tutti::Communicator::make_unique_id();
    store.set(key, std::vector<std::uint8_t>(std::begin(id.bytes), std::end(id.bytes)));
    return id;
  }
  store.wait({key}, timeout);
  const std::vector<std::uint8_t> bytes = store.get(key);
  TORCH_CHECK_WITH(DistBackendError, bytes.size() == sizeof(id.bytes), "rank ", rank, " found ", bytes.size(),
                   " bytes in the store; expected the ", sizeof(id.bytes), " of Tutti's id");
  std::memcpy(id.bytes, bytes.data(), bytes.size());
  return id;
}

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

/// "[0, 3]".
std::string text_of(const std::uint64_t* ranks, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (text.empty() ? "[" : ", ") + std::to_string(ranks[i]);
  return text + "]";
}

/// Groups that are made side by side share a name in the store, so ranks that name different members may meet. Throws
/// on all of them, then.
void check_members(tutti::Communicator& comm, std::vector<std::uint64_t> ranks) {
  const auto size = static_cast<std::size_t>(comm.size());
  ranks.resize(size);  // none: the default group, whose ranks torch does not list
  std::vector<std::uint64_t> all(size * size);
  comm.all_gather(ranks.data(), all.data(), size, tutti::DataType::u64);
  for (std::size_t r = 1; r < size; ++r) {
    if (std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size), &all[r * size])) continue;
    throw tutti::Error(
        tutti::Code::mismatch,
        "rank 0 of the group was given the ranks " + text_of(all.data(), size) + ", and its rank " + std::to_string(r) +
            " the ranks " + text_of(&all[r * size], size) +
            "; expected one list on all of them: new_group() is called by all ranks, with the same lists in the "
            "same order");
  }
}

}  // namespace

c10::intrusive_ptr<TuttiBackend> create_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const c10::intrusive_ptr<TuttiBackend::Options>& options) {
  // What an earlier group of this name has left in the store is not this one's.
  const auto own_store =
      c10::make_intrusive<c10d::PrefixStore>("tutti/" + number(store->add("tutti/makings/" + number(rank), 1)), store);
  struct Pair {
    tutti::Communicator collectives;
    tutti::Communicator transfers;
  };
  Pair pair = translated([&] {
    return beside([store = own_store, rank, size, timeout = options->timeout, ranks = options->global_ranks_in_group] {
      tutti::Options how;
      how.timeout = timeout;
      how.interrupted = interrupted;
      const tutti::UniqueId id = size > 1 ? exchange_id(*store, rank, timeout) : tutti::Communicator::make_unique_id();
      Pair made;
      made.collectives = tutti::Communicator::from_unique_id(id, rank, size, how);
      check_members(made.collectives, ranks);
      made.transfers = made.collectives.split(0, rank);
      return made;
    });
  });
  return c10::make_intrusive<TuttiBackend>(own_store, rank, size, std::move(pair.collectives),
                                           std::move(pair.transfers), options);
}

}  // namespace tutti_torch
