// Ranks as threads of the test, for everything that trains.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Runs `body(rank, communicator)` on each rank. Returns what each threw (empty: nothing).
inline std::vector<std::string> on_ranks(int size, const std::function<void(int, Communicator)>& body,
                                         const Options& options = {}) {
  // Matrix products of one thread have one order of additions. The setting has to be made in each thread: without it
  // MKL takes another path there, to other bits.
  torch::set_num_threads(1);
  std::vector<Communicator> comms = Communicator::in_process(size, options);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      torch::set_num_threads(1);
      const auto i = static_cast<std::size_t>(rank);
      try {
        body(rank, std::move(comms[i]));
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Returns what on_ranks() returns when no rank threw.
inline std::vector<std::string> nothing(int size) { return std::vector<std::string>(static_cast<std::size_t>(size)); }

}  // namespace tutti::training
