#include "training/tensor/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

std::mutex guard_mutex;  // of the default generator's guards, all threads
thread_local bool holds_guard = false;

torch::Tensor exchange_default_state(const torch::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  torch::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

torch::Tensor seeded(std::uint64_t seed) { return at::detail::createCPUGenerator(seed).get_state(); }

std::unique_lock<std::mutex> lock_guards() {
  if (holds_guard) {
    throw Error(Code::invalid_argument, "RandomStates::use: this thread holds a guard already; end it before another");
  }
  return std::unique_lock<std::mutex>(guard_mutex);
}

}  // namespace

RandomStates::RandomStates(std::uint64_t seed, int rank)
    : outside_(seeded(seed)), inside_(seeded(seed + kInsideOffset + static_cast<std::uint64_t>(rank))) {}

RandomStates::Guard::Guard(torch::Tensor* state)
    : lock_(lock_guards()), state_(state), before_(exchange_default_state(*state)) {
  holds_guard = true;
}

RandomStates::Guard::~Guard() {
  *state_ = exchange_default_state(before_);
  holds_guard = false;
}

RandomStates::Guard RandomStates::use(RandomRegion region) {
  return Guard(region == RandomRegion::inside ? &inside_ : &outside_);
}

RandomStates::Snapshot RandomStates::snapshot() const { return {outside_.clone(), inside_.clone()}; }

void RandomStates::restore(const Snapshot& snapshot) {
  outside_ = snapshot.outside.clone();
  inside_ = snapshot.inside.clone();
}

}  // namespace tutti::training
