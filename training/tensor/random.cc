#include "training/tensor/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

std::mutex guard_mutex;  // of the default generator's guards, all threads
thread_local bool holds_guard = false;

torch::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

torch::Tensor exchange_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  torch::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

std::unique_lock<std::mutex> lock_guards() {
  if (holds_guard) {
    throw Error(Code::invalid_argument, "RandomStates::use: this thread holds a guard already; end it before another");
  }
  return std::unique_lock<std::mutex>(guard_mutex);
}

}  // namespace

RandomStates::RandomStates(std::uint64_t seed, int rank)
    : outside_(at::detail::createCPUGenerator(seed)),
      inside_(at::detail::createCPUGenerator(seed + kInsideOffset + static_cast<std::uint64_t>(rank))) {}

RandomStates::Guard::Guard(at::Generator generator)
    : lock_(lock_guards()),
      generator_(std::move(generator)),
      before_(exchange_state(at::detail::getDefaultCPUGenerator(), state_of(generator_))) {
  holds_guard = true;
}

RandomStates::Guard::~Guard() {
  exchange_state(generator_, exchange_state(at::detail::getDefaultCPUGenerator(), before_));
  holds_guard = false;
}

RandomStates::Guard RandomStates::use(RandomRegion region) {
  return Guard(region == RandomRegion::inside ? inside_ : outside_);
}

}  // namespace tutti::training
