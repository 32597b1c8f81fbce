#include "tests/support/block_team.h"

namespace tutti::testing {

BlockTeam::~BlockTeam() {
  {
    const std::lock_guard lock(mutex_);
    body_ = nullptr;
    ++round_;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockTeam::run(std::uint32_t blocks, const Body& body) {
  if (blocks > 1) {
    const std::lock_guard lock(mutex_);
    while (threads_.size() + 1 < blocks) {
      threads_.emplace_back([this, block = static_cast<std::uint32_t>(threads_.size() + 1)] { serve(block); });
    }
    body_ = &body;
    blocks_ = blocks;
    busy_ = blocks - 1;
    ++round_;
  }
  if (blocks > 1) begun_.notify_all();
  body(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

// A thread that has no part in a round may sleep through it.
void BlockTeam::serve(std::uint32_t block) {
  std::unique_lock lock(mutex_);
  for (std::uint64_t seen = 0;;) {
    begun_.wait(lock, [&] { return round_ != seen; });
    seen = round_;
    if (body_ == nullptr) return;
    if (block >= blocks_) continue;
    const Body& body = *body_;
    lock.unlock();
    body(block);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace tutti::testing
