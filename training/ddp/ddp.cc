#include "training/ddp/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "training/abort.h"
#include "training/ddp/reducer.h"
#include "training/replicas.h"

namespace tutti::training {
namespace {

std::vector<NamedTensor> trained(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) result.push_back(parameter);
  }
  return result;
}

}  // namespace

struct DistributedDataParallel::State {
  State(torch::nn::Module& module, Communicator communicator, const DdpOptions& options)
      : comm(std::move(communicator)),
        replicas(module, comm, "DistributedDataParallel"),
        reducer(
            trained(replicas.parameters()), comm, options, [this] { replicas.check_unchanged(); },
            options.broadcast_buffers && replicas.has_buffers()
                ? std::function<void()>([this] { replicas.broadcast_buffers(buffer_root); })
                : nullptr) {
    check_same_instructions(replicas.parameters(), comm, "DistributedDataParallel");
  }

  Communicator comm;
  Replicas replicas;
  int buffer_root = 0;  // whose buffers count
  Reducer reducer;
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, Communicator communicator,
                                                 const DdpOptions& options)
    : state_(std::make_unique<State>(module, std::move(communicator), options)) {}
DistributedDataParallel::~DistributedDataParallel() = default;

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(state_->reducer.no_sync_depth()); }
void DistributedDataParallel::average_gradients() { state_->reducer.average_now(); }
void DistributedDataParallel::zero_grad() {
  state_->replicas.check_unchanged();  // before forward meets the change
  state_->reducer.zero_grad();
}
void DistributedDataParallel::broadcast_buffers() { state_->replicas.broadcast_buffers(0); }
void DistributedDataParallel::check_equal() { state_->replicas.check_equal(); }
std::vector<std::string> DistributedDataParallel::unused_parameters() const { return state_->reducer.unused(); }
const std::vector<Bucket>& DistributedDataParallel::buckets() const { return state_->reducer.buckets(); }
DdpStats DistributedDataParallel::stats() const { return state_->reducer.stats(); }

// What each rank has for the step under way; kRanOut for one that has no more. Returns whether any has.
bool Join::exchange(std::int64_t count) {
  DistributedDataParallel::State& state = *ddp_.state_;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(state.comm.size()));
  state.comm.all_gather(&count, counts.data(), 1, DataType::i64);
  total_ = 0;
  for (const std::int64_t each : counts) total_ += std::max<std::int64_t>(each, 0);
  // Buffers are those of the lowest rank with samples, or else of the lowest that still takes part.
  const auto with_samples = std::find_if(counts.begin(), counts.end(), [](std::int64_t each) { return each > 0; });
  const auto taking_part =
      std::find_if(counts.begin(), counts.end(), [](std::int64_t each) { return each != kRanOut; });
  if (taking_part == counts.end()) return false;
  state.buffer_root = static_cast<int>((with_samples != counts.end() ? with_samples : taking_part) - counts.begin());
  return true;
}

double Join::weigh(std::int64_t count) {
  DistributedDataParallel::State& state = *ddp_.state_;
  if (count < 0) {
    fail_on_all(state.comm,
                fmt::format("Join::weigh: count is {}; it must be the number of samples of a batch, at least 0 "
                            "(a rank without another batch calls finish)",
                            count));
  }
  exchange(count);
  return count == 0 ? 0 : static_cast<double>(count) * state.comm.size() / static_cast<double>(total_);
}

void Join::finish(const std::function<void()>& update) {
  while (exchange(kRanOut)) {
    ddp_.state_->reducer.shadow_pass();
    update();
  }
  ddp_.state_->buffer_root = 0;
  ddp_.state_->reducer.leave_step();
}

}  // namespace tutti::training
