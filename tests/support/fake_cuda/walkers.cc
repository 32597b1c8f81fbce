#if TUTTI_HAS_CUDA

#include "tests/support/fake_cuda/walkers.h"

#include <cstddef>
#include <utility>

#include "collectives/executor/cuda/kernels.h"
#include "tests/support/host_block.h"

namespace tutti::testing {

namespace {

using executor::cuda::LaunchArguments;

template <int kKernel>
void walk(const FakeBlock& block, LaunchArguments arguments) {
  executor::cuda::walk_on_host(kKernel, arguments, {.index = block.index, .blocks = block.count});
}

template <std::size_t... kKernel>
void add(FakeDriver& driver, std::index_sequence<kKernel...>) {
  (driver.kernel<LaunchArguments>(executor::cuda::kKernelNames[kKernel], walk<static_cast<int>(kKernel)>), ...);
}

}  // namespace

void add_walkers(FakeDriver& driver) {
  add(driver, std::make_index_sequence<executor::cuda::kP2pKernel>());
  driver.kernel<executor::cuda::P2pArguments>(
      executor::cuda::kKernelNames[executor::cuda::kP2pKernel],
      +[](const FakeBlock& block, executor::cuda::P2pArguments arguments) {
        executor::cuda::run_p2p_on_host(arguments, {.index = block.index, .blocks = block.count});
      });
}

}  // namespace tutti::testing

#endif  // TUTTI_HAS_CUDA
