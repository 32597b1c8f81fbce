#include "training/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

/// The first line: torch's errors carry a call stack in the others.
std::string sentence_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Throws what `error` is, with the batch's number before it.
[[noreturn]] void throw_for_batch(std::uint64_t number, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    std::throw_with_nested(Error(cause.code(), fmt::format("Loader: batch {}: {}", number, sentence_of(cause))));
  } catch (const std::exception& cause) {
    std::throw_with_nested(Error(Code::system, fmt::format("Loader: batch {}: {}", number, sentence_of(cause))));
  } catch (...) {
    std::throw_with_nested(
        Error(Code::system, fmt::format("Loader: batch {}: something that is no std::exception was thrown", number)));
  }
}

void check(const LoaderOptions& options) {
  if (options.threads < 1 || options.depth < 1) {
    throw Error(Code::invalid_argument, fmt::format("Loader: {} threads and depth {}; both must be at least 1",
                                                    options.threads, options.depth));
  }
  if (options.begin > options.end) {
    throw Error(Code::invalid_argument, fmt::format("Loader: begin {} is past end {}", options.begin, options.end));
  }
}

}  // namespace

struct Prefetcher::State {
  struct Place {
    bool ready = false;
    std::exception_ptr error;
  };

  State(const LoaderOptions& options, Make make_batch)
      : end(options.end), make(std::move(make_batch)), taken(options.begin), position(options.begin) {
    check(options);
    places.resize(options.depth);
    const std::size_t count = std::min(static_cast<std::size_t>(options.threads), options.depth);
    try {
      for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    } catch (const std::exception& error) {
      stop();
      throw Error(Code::system, fmt::format("Loader: cannot start a thread: {}", error.what()));
    }
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || taken == end || taken - position < places.size(); });
      if (stopping || taken == end) return;
      const std::uint64_t number = taken++;
      Place& place = places[number % places.size()];
      lock.unlock();
      std::exception_ptr error;
      try {
        make(number, number % places.size());
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      place.ready = true;
      place.error = error;
      made.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  const std::uint64_t end;
  const Make make;
  std::mutex mutex;
  std::condition_variable changed;  // position or stopping
  std::condition_variable made;     // a batch
  std::uint64_t taken;              // number of the next batch that a thread will make
  std::uint64_t position;           // number of the next batch to be handed out
  std::vector<Place> places;
  bool stopping = false;
  std::vector<std::thread> threads;
};

Prefetcher::Prefetcher(const LoaderOptions& options, Make make)
    : state_(std::make_unique<State>(options, std::move(make))) {}

Prefetcher::~Prefetcher() { state_->stop(); }

std::optional<std::size_t> Prefetcher::wait() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.position == state.end) return std::nullopt;
  const std::size_t index = state.position % state.places.size();
  const State::Place& place = state.places[index];
  state.made.wait(lock, [&] { return place.ready; });
  if (place.error) throw_for_batch(state.position, place.error);
  return index;
}

void Prefetcher::release() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->places[state_->position % state_->places.size()].ready = false;
    ++state_->position;
  }
  state_->changed.notify_one();
}

std::uint64_t Prefetcher::position() const {
  const std::lock_guard lock(state_->mutex);
  return state_->position;
}

}  // namespace tutti::training
