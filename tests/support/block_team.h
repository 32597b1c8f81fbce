// Threads that play the blocks of one kernel after another. They are kept: under AddressSanitizer to make one takes
// longer than what a block does here.
//
//   BlockTeam team;
//   team.run(4, [](std::uint32_t block) { ... });   // block 0 on the caller's thread; ends when all have
//
// Threads: run() is called by one thread at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti::testing {

class BlockTeam {
 public:
  using Body = std::function<void(std::uint32_t block)>;

  BlockTeam() = default;
  BlockTeam(const BlockTeam&) = delete;
  BlockTeam& operator=(const BlockTeam&) = delete;
  ~BlockTeam();
  void run(std::uint32_t blocks, const Body& body);

 private:
  void serve(std::uint32_t block);

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable done_;
  // Guarded by mutex_.
  const Body* body_ = nullptr;  // null: the team disbands
  std::uint64_t round_ = 0;     // counts the calls of run()
  std::uint32_t blocks_ = 0;    // of this round
  std::uint32_t busy_ = 0;      // threads that are not done with it
  std::vector<std::thread> threads_;
};

}  // namespace tutti::testing
