// Ranks for tests: as threads of this process, or as forked processes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::testing {

/// The program of a rank. Throwing fails the test with the text.
using Body = std::function<void(Communicator&)>;

/// Runs `body` on `ranks` threads; returns each rank's error text (empty: none).
inline std::vector<std::string> run_threads(int ranks, const Body& body, const Options& options = {}) {
  std::vector<Communicator> all = Communicator::in_process(ranks, options);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(all[static_cast<std::size_t>(r)]);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

}  // namespace tutti::testing
