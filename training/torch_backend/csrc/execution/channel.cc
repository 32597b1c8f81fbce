#include "csrc/execution/channel.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/errors.h"
#include "csrc/base/per_process.h"

namespace tutti_torch {

namespace {

struct List {
  std::mutex mutex;
  std::vector<std::weak_ptr<Channel>> channels;  // guarded by mutex; those that are gone leave with the next to come
};

List& list() { return per_process<List>(); }

}  // namespace

std::shared_ptr<Channel> Channel::make(tutti::Communicator communicator) {
  const std::shared_ptr<Channel> channel(new Channel(std::move(communicator)));
  const std::lock_guard lock(list().mutex);
  std::erase_if(list().channels, [](const std::weak_ptr<Channel>& other) { return other.expired(); });
  list().channels.push_back(channel);
  return channel;
}

Channel::~Channel() {
  if (!idle()) abort("its group was destroyed while calls were under way");
}

void Channel::close_all(std::chrono::milliseconds limit) {
  std::vector<std::shared_ptr<Channel>> open;
  {
    const std::lock_guard lock(list().mutex);
    for (const std::weak_ptr<Channel>& other : list().channels) {
      if (auto channel = other.lock()) open.push_back(std::move(channel));
    }
  }
  const Clock::time_point deadline = Clock::now() + limit;
  for (const std::shared_ptr<Channel>& channel : open) {
    std::unique_lock lock(channel->state_->mutex);
    const bool idle = channel->state_->idle.wait_until(lock, deadline, [&] { return channel->idle(); });
    lock.unlock();
    // A thread that Python leaves behind may be inside a call.
    const bool unused = std::unique_lock(channel->mutex_, std::try_to_lock).owns_lock();
    if (!idle || !unused) channel->abort("its process ended while calls were under way");
    channel->close();
  }
}

void Channel::State::failed(tutti::Code code) {
  // After these the group still works.
  if (code == tutti::Code::invalid_argument || code == tutti::Code::unsupported || code == tutti::Code::memory_limit) {
    return;
  }
  tutti::Code none = tutti::Code::ok;
  failure.compare_exchange_strong(none, code, std::memory_order_relaxed);
}

tutti::Communicator& Channel::open_communicator() {
  if (!communicator_) {
    throw tutti::Error(tutti::Code::invalid_argument,
                       "the group has been shut down; expected no call on it after that");
  }
  return communicator_;
}

tutti::Communicator Channel::communicator() const {
  const std::lock_guard lock(handle_mutex_);
  return communicator_;
}

void Channel::run(std::span<const Operation> operations) {
  const std::lock_guard lock(mutex_);
  run(open_communicator(), operations);
}

void Channel::run(std::span<const Operation> operations, std::chrono::milliseconds timeout,
                  std::chrono::milliseconds usual) {
  const std::lock_guard lock(mutex_);
  tutti::Communicator& communicator = open_communicator();
  communicator.set_timeout(timeout);
  try {
    run(communicator, operations);
  } catch (const tutti::Error&) {
    communicator.set_timeout(usual);
    throw;
  }
  communicator.set_timeout(usual);
}

void Channel::run(tutti::Communicator& communicator, std::span<const Operation> operations) {
  try {
    for (const Operation& operation : operations) tutti_torch::run(communicator, operation);
  } catch (const tutti::Error& error) {
    state_->failed(error.code());
    throw;
  }
}

void Channel::start(std::span<const Operation> operations, std::function<void(std::exception_ptr)> done) {
  tutti::Work last;
  {
    const std::lock_guard lock(mutex_);
    tutti::Communicator& communicator = open_communicator();
    try {
      for (const Operation& operation : operations) last = tutti_torch::start(communicator, operation);
    } catch (const tutti::Error&) {
      if (!last) throw;
      // What was started has to end before its memory may go; it runs before whatever else this rank does.
      try {
        last.wait();
      } catch (const tutti::Error&) {
      }
      throw;
    }
  }
  // They end in order, and after a failure all that follow end with it: the last one speaks for all.
  watch(last, std::move(done));
}

void Channel::watch(const tutti::Work& work, std::function<void(std::exception_ptr)> done) {
  state_->pending.fetch_add(1, std::memory_order_relaxed);
  work.then([state = state_, done = std::move(done)](const tutti::Error* error) {
    if (error != nullptr) state->failed(error->code());
    {
      const std::lock_guard lock(state->mutex);
      state->pending.fetch_sub(1, std::memory_order_release);
    }
    state->idle.notify_all();
    done(error == nullptr ? nullptr : torch_error(*error));
  });
}

bool Channel::wait_idle(Clock::time_point deadline) {
  if (is_of_a_parent()) return true;
  std::unique_lock lock(state_->mutex);
  try {
    return wait_with_signals(state_->idle, lock, deadline, [this] { return idle(); });
  } catch (...) {
    abort("a rank was interrupted while it waited for the group's calls to end");
    throw;
  }
}

void Channel::abort(const std::string& reason) {
  if (tutti::Communicator communicator = this->communicator()) {
    state_->failed(tutti::Code::aborted);
    communicator.abort(reason);
  }
}

void Channel::expect_well() const {
  const tutti::Communicator communicator = this->communicator();
  std::string text;
  const tutti::Code code = communicator ? communicator.status(&text) : tutti::Code::ok;
  if (code == tutti::Code::ok) return;
  state_->failed(code);
  std::rethrow_exception(torch_error(tutti::Error(code, text)));
}

void Channel::close() {
  tutti::Communicator leaving;
  const std::lock_guard lock(mutex_);
  const std::lock_guard handle_lock(handle_mutex_);
  std::swap(leaving, communicator_);
}

}  // namespace tutti_torch
