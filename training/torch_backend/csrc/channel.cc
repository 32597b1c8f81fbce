#include "csrc/channel.h"

#include "csrc/errors.h"

namespace tutti_torch {

void Channel::run(std::span<const Operation> operations) {
  const std::lock_guard lock(mutex_);
  for (const Operation& operation : operations) tutti_torch::run(communicator_, operation);
}

void Channel::start(std::span<const Operation> operations, std::function<void(std::exception_ptr)> done) {
  tutti::Work last;
  {
    const std::lock_guard lock(mutex_);
    try {
      for (const Operation& operation : operations) last = tutti_torch::start(communicator_, operation);
    } catch (const tutti::Error&) {
      if (!last) throw;
      // What was started has to end before its memory may go; it runs before whatever else this rank does.
      try {
        last.wait();
      } catch (const tutti::Error&) {
      }
      throw;
    }
    pending_->fetch_add(1, std::memory_order_relaxed);
  }
  // They end in order, and after a failure all that follow end with it: the last one speaks for all.
  last.then([pending = pending_, done = std::move(done)](const tutti::Error* error) {
    pending->fetch_sub(1, std::memory_order_release);
    done(error == nullptr ? nullptr : torch_error(*error));
  });
}

}  // namespace tutti_torch
