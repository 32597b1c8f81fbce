// What perf/driver/add_kernel.h has in PTX, for a fake driver.
#pragma once

#include "perf/driver/add_kernel.h"
#include "tests/support/fake_cuda/driver.h"

namespace tutti::perf {

struct Vector {
  float words[4];
};

inline void add_on_host(const testing::FakeBlock& block, Vector* to, const Vector* from, unsigned long long count) {
  for (unsigned long long i = block.index; i < count; i += block.count) {
    for (int w = 0; w < 4; ++w) to[i].words[w] += from[i].words[w];
  }
}

inline void add_adder(testing::FakeDriver& driver) { driver.kernel(kAddKernelName, add_on_host); }

}  // namespace tutti::perf
