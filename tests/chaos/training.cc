// The trainings of the campaign: a small network by DDP or FSDP, with gradients that are known to be equal on all
// ranks.
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "tests/chaos/ranks.h"
#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"

namespace tutti::chaos {
namespace {

torch::nn::Sequential network() {
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(33, 65), torch::nn::Tanh(), torch::nn::Linear(65, 65),
                               torch::nn::Tanh(), torch::nn::Linear(65, 9));
}

template <class Strategy>
void steps(const Scenario& scenario, Strategy& strategy, torch::nn::Sequential& net, torch::optim::Optimizer& optimizer,
           int rank, Report& report) {
  for (int step = 0; step < scenario.calls; ++step) {
    report.calls = step + 1;
    torch::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
    strategy.zero_grad();
    net->forward(torch::randn({8, 33})).pow(2).mean().backward();
    optimizer.step();
  }
}

/// Whether all ranks have the same: their smallest is their largest.
void expect_equal(Communicator& comm, const torch::Tensor& values) {
  const torch::Tensor least = values.contiguous().clone();
  const torch::Tensor most = least.clone();
  const auto count = static_cast<std::size_t>(values.numel());
  comm.all_reduce(least.data_ptr(), least.data_ptr(), count, DataType::f32, ReduceOp::min);
  comm.all_reduce(most.data_ptr(), most.data_ptr(), count, DataType::f32, ReduceOp::max);
  if (!torch::equal(least, most)) throw std::runtime_error("the ranks' parameters differ");
}

}  // namespace

bool can_train() { return true; }

// What LibTorch opens once: /dev/urandom for its first generator, and in /proc what the processor can do. A rank where
// that is refused calculates by other instructions, with other roundings.
void prepare_training() {
  torch::nn::Sequential net = network();
  net->forward(torch::ones({8, 33})).sum().backward();
}

void train(const Scenario& scenario, Communicator comm, Report& report) {
  torch::set_num_threads(1);
  torch::nn::Sequential net = network();
  if (scenario.work == Work::ddp) {
    training::DistributedDataParallel ddp(*net, comm);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    steps(scenario, ddp, net, optimizer, comm.rank(), report);
    for (const torch::Tensor& parameter : net->parameters()) expect_equal(comm, parameter.detach());
  } else {
    training::FullyShardedDataParallel fsdp(*net, comm);
    torch::optim::AdamW optimizer(fsdp.parameters());
    steps(scenario, fsdp, net, optimizer, comm.rank(), report);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) expect_equal(comm, fsdp.full_parameter(i));
  }
  comm.barrier();
}

}  // namespace tutti::chaos
