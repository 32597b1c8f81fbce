// A protocol of a few flags, tried in every interleaving and with every value that a load may return under the memory
// model of C++ (by Relacy, Debian's relacy-dev). So what holds here holds on Arm too, whatever machine runs the test.
//
// A protocol is written with orders that can be weakened one by one: a test of it fails where one of them is spare, or
// where the search does not find what goes wrong without it.
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <ostream>
// Behind the others, for it defines what they use.
#include <relacy/relacy.hpp>
#undef assert
#undef calloc
#undef delete
#undef errno
#undef free
#undef malloc
#undef new
#undef realloc

namespace tutti::ordering {

/// Which of a protocol's orders, from 1, is relaxed; 0: none.
inline int weakened = 0;

inline rl::memory_order acquire(int number) { return number == weakened ? rl::mo_relaxed : rl::mo_acquire; }
inline rl::memory_order release(int number) { return number == weakened ? rl::mo_relaxed : rl::mo_release; }
inline void fence(int number) {
  if (number != weakened) rl::atomic_thread_fence(rl::mo_seq_cst, $);
}

using Word = rl::atomic<int>;
using Plain = rl::var<int>;  // what is not atomic: races on it are found

/// Writes what Relacy finds to `output`. Relacy allocates while it searches, and takes what it allocates to itself: so
/// the stream must not.
template <class Protocol>
bool holds(std::ostream& output) {
  rl::test_params params;
  params.search_type = rl::sched_full;
  params.collect_history = true;
  params.output_stream = params.progress_stream = &output;
  rl::ostringstream state;
  using Scheduler = rl::full_search_scheduler<Protocol::params::thread_count>;
  return rl::run_test<Protocol, Scheduler>(params, state, false) == rl::test_result_success;
}

/// The protocol holds with all its orders, and fails without any one of them.
template <class Protocol>
void expect_tight() {
  weakened = 0;
  EXPECT_TRUE(holds<Protocol>(std::cout));
  for (weakened = 1; weakened <= Protocol::kOrders; ++weakened) {
    std::ostream nowhere(nullptr);
    EXPECT_FALSE(holds<Protocol>(nowhere)) << "nothing goes wrong without order " << weakened;
  }
}

}  // namespace tutti::ordering
