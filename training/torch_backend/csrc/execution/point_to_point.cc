#include "csrc/execution/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/tensors/arguments.h"

namespace tutti_torch {

namespace {

/// Completes a work when several things have ended.
class Join {
 public:
  Join(c10::intrusive_ptr<TuttiWork> work, int parts) : work_(std::move(work)), remaining_(parts) {}

  void end(const std::exception_ptr& error) {
    {
      const std::lock_guard lock(mutex_);
      if (error && !error_) error_ = error;
      if (--remaining_ > 0) return;
    }
    work_->complete(error_);
  }

 private:
  const c10::intrusive_ptr<TuttiWork> work_;
  std::mutex mutex_;
  int remaining_;             // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
};

}  // namespace

PointToPoint::Message PointToPoint::checked(bool sending, const at::Tensor& tensor, int peer, int tag,
                                            const Caller& caller) const {
  expect_served(tensor, caller);
  TUTTI_TORCH_EXPECT(tensor.is_cpu() || (tag == 0 && peer != tutti::kAnySource), caller,
                     "the tensor is on a device; expected tag 0, and the rank of the sender");
  TUTTI_TORCH_EXPECT(tag >= 0, caller, "tag is ", tag, "; expected 0 or more");
  TUTTI_TORCH_EXPECT((peer >= 0 && peer < size_) || (!sending && peer == tutti::kAnySource), caller, "the peer is ",
                     peer, "; expected a rank of the group, 0 to ", size_ - 1);
  return {.sending = sending,
          .peer = peer,
          .tag = tag,
          .tensor = tensor,
          .memory = sending ? contiguous_input(tensor) : contiguous_output(tensor),
          .elements = elements_for_moving(tensor.scalar_type())};
}

tutti::Work PointToPoint::start(tutti::Communicator& communicator, const Message& m, int* source) {
  const std::size_t count = elements_in(m.memory) * m.elements.per_element;
  if (m.sending) return communicator.send_async(m.memory.const_data_ptr(), count, m.elements.type, m.peer, m.tag);
  return communicator.recv_async(m.memory.mutable_data_ptr(), count, m.elements.type, m.peer, m.tag, source);
}

PointToPoint::WorkPtr PointToPoint::launch(Message message, c10d::OpType type, const char* title, const Caller& caller,
                                           std::uint64_t sequence) {
  if (Batch* const open = batch()) {
    open->messages.push_back(std::move(message));
    return open->work;
  }
  auto work = c10::make_intrusive<TuttiWork>(type, title, caller, sequence, Tensors{message.tensor}, channel_);
  int* const source = work->source();
  *source = message.sending ? rank_ : message.peer;
  if (!message.memory.is_cpu()) {
    launch_on_device({&message, 1}, *work);
    return work;
  }
  const tutti::Work started =
      translated([&] { return channel_->use([&](tutti::Communicator& c) { return start(c, message, source); }); });
  work->keep({message.memory}, copies_of({&message, 1}));
  channel_->watch(started, [work](std::exception_ptr error) { work->complete(std::move(error)); });
  return work;
}

void PointToPoint::launch_on_device(std::span<const Message> messages, TuttiWork& work) {
  const c10::Stream stream = streams_.of(messages.front().memory.device());
  const StreamScope scope(stream);
  translated([&] {
    channel_->use([&](tutti::Communicator& c) {
      c.group_start();
      for (const Message& m : messages) note(c, m, stream.native_handle());
      c.group_end();
    });
  });
  for (const Message& m : messages) scope.uses(m.memory);
  for (const CopyBack& back : copies_of(messages)) copy_into(back.to, back.from);
  work.complete_on_device(scope.end());
}

std::vector<CopyBack> PointToPoint::copies_of(std::span<const Message> messages) {
  std::vector<CopyBack> copies;
  for (const Message& m : messages) {
    if (!m.sending && !m.memory.is_same(m.tensor)) copies.push_back({m.tensor, m.memory});
  }
  return copies;
}

PointToPoint::Message PointToPoint::message(bool sending, const at::Tensor& tensor, int peer, int tag,
                                            const Caller& caller) try {
  return checked(sending, tensor, peer, tag, caller);
} catch (...) {
  give_up_batch(std::current_exception());
  throw;
}

PointToPoint::WorkPtr PointToPoint::send(const at::Tensor& tensor, int peer, int tag, std::uint64_t sequence) {
  const Caller caller{rank_, "send"};
  return launch(message(true, tensor, peer, tag, caller), c10d::OpType::SEND, "tutti:send", caller, sequence);
}

PointToPoint::WorkPtr PointToPoint::receive(const at::Tensor& tensor, int peer, int tag, std::uint64_t sequence) {
  const Caller caller{rank_, "recv"};
  TUTTI_TORCH_EXPECT(peer != tutti::kAnySource, caller, "the peer is ", peer, "; expected a rank of the group");
  return launch(message(false, tensor, peer, tag, caller), c10d::OpType::RECV, "tutti:recv", caller, sequence);
}

PointToPoint::WorkPtr PointToPoint::receive_from_any(const at::Tensor& tensor, int tag, std::uint64_t sequence) {
  const Caller caller{rank_, "recv from any source"};
  return launch(message(false, tensor, tutti::kAnySource, tag, caller), c10d::OpType::RECVANYSOURCE,
                "tutti:recv_any_source", caller, sequence);
}

PointToPoint::Batch* PointToPoint::batch() {
  if (open_batches_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(std::this_thread::get_id());
  if (found == batches_.end()) return nullptr;
  if (!found->second.work->isCompleted()) return &found->second;
  batches_.erase(found);
  open_batches_.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

void PointToPoint::give_up_batch(std::exception_ptr error) {
  Batch* const open = batch();
  if (open == nullptr) return;
  open->work->started();
  open->work->complete(std::move(error));
  (void)batch();  // forgets it
}

void PointToPoint::start_batch(std::uint64_t sequence) {
  const Caller caller{rank_, "start_coalescing"};
  if (batch() != nullptr) {
    give_up_batch(backend_error(caller.text() + " while the one before was open, whose calls were not started"));
  }
  const std::lock_guard lock(mutex_);
  const WorkPtr& work = batches_[std::this_thread::get_id()].work = c10::make_intrusive<TuttiWork>(
      c10d::OpType::COALESCED, "tutti:coalesced", Caller{rank_, "a coalesced call"}, sequence, Tensors{}, channel_);
  work->open();
  open_batches_.fetch_add(1, std::memory_order_relaxed);
}

void PointToPoint::add_to_batch(const c10::intrusive_ptr<c10d::Work>& work) {
  if (Batch* const open = batch()) open->others.push_back(work);
}

PointToPoint::WorkPtr PointToPoint::finish_batch() {
  const Caller caller{rank_, "end_coalescing"};
  TUTTI_TORCH_EXPECT(batch() != nullptr, caller,
                     "nothing is open: start_coalescing was not called, or a call that was refused has ended it");
  Batch batch;
  {
    const std::lock_guard lock(mutex_);
    batch = std::move(batches_.extract(std::this_thread::get_id()).mapped());
    open_batches_.fetch_sub(1, std::memory_order_relaxed);
  }
  const WorkPtr work = batch.work;
  work->started();
  try {
    start(batch, caller);
  } catch (...) {
    work->complete(std::current_exception());
    throw;
  }
  return work;
}

void PointToPoint::start(Batch& batch, const Caller& caller) {
  const WorkPtr& work = batch.work;
  const auto on_host = [](const Message& m) { return m.memory.is_cpu(); };
  if (!batch.messages.empty() && std::none_of(batch.messages.begin(), batch.messages.end(), on_host)) {
    TUTTI_TORCH_EXPECT(batch.others.empty(), caller, "it has messages of device memory beside collectives");
    return launch_on_device(batch.messages, *work);
  }
  TUTTI_TORCH_EXPECT(std::all_of(batch.messages.begin(), batch.messages.end(), on_host), caller,
                     "it has messages of several kinds of memory; expected one");
  const auto join = std::make_shared<Join>(work, 1 + static_cast<int>(batch.others.size()));
  Tensors held;
  for (const Message& m : batch.messages) held.push_back(m.memory);
  work->keep(std::move(held), copies_of(batch.messages));
  for (const auto& other : batch.others) {
    other->getFuture()->addCallback(
        [join](c10::ivalue::Future& future) { join->end(future.hasError() ? future.exception_ptr() : nullptr); });
  }
  if (batch.messages.empty()) return join->end(nullptr);
  const tutti::Work started = translated([&] {
    return channel_->use([&](tutti::Communicator& c) {
      c.group_start();
      for (const Message& m : batch.messages) note(c, m);
      return c.group_end_async();
    });
  });
  channel_->watch(started, [join](const std::exception_ptr& error) { join->end(error); });
}

void PointToPoint::note(tutti::Communicator& communicator, const Message& m, tutti::Stream stream) {
  const std::size_t count = elements_in(m.memory) * m.elements.per_element;
  if (m.sending) {
    communicator.send(m.memory.const_data_ptr(), count, m.elements.type, m.peer, m.tag, stream);
  } else {
    communicator.recv(m.memory.mutable_data_ptr(), count, m.elements.type, m.peer, m.tag, nullptr, stream);
  }
}

}  // namespace tutti_torch
