// Sharded training: each rank keeps one part of every parameter, of its gradient and of its optimiser state, and
// gathers a layer just before it computes. The model is made so that no rank ever holds all of it.
//   run_ranks.sh 2 ./fsdp        or mpirun -n 2, torchrun --no-python, srun
#include <torch/torch.h>
#include <tutti/training/fsdp/fsdp.h>
#include <tutti/training/fsdp/shard_init.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

namespace {

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < 4; ++layer) {
    model->push_back(torch::nn::Linear(layer == 0 ? 8 : 1024, 1024));
    model->push_back(torch::nn::Tanh());
  }
  model->push_back(torch::nn::Linear(1024, 1));
  return model;
}

}  // namespace

int main() try {
  using namespace tutti::training;
  tutti::Communicator comm = tutti::Communicator::from_environment();
  torch::set_num_threads(1);

  torch::manual_seed(1);  // the same on every rank, as each draws its own rows of the model
  std::optional<ShardInit> guard(std::in_place, comm.rank(), comm.size());
  torch::nn::Sequential model = make_model();
  guard.reset();

  FsdpOptions options;
  options.values = Values::own_rows;
  options.units = by_type<torch::nn::LinearImpl>();
  FullyShardedDataParallel fsdp(*model, comm, options);
  torch::optim::AdamW optimizer(fsdp.parameters(), torch::optim::AdamWOptions(1e-3));

  torch::manual_seed(100 + comm.rank());
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor x = torch::randn({32, 8}), y = x.prod(1, /*keepdim=*/true).tanh();  // this rank's rows
    fsdp.zero_grad();
    torch::mse_loss(model->forward(x), y).backward();  // returns with this rank's shard of the mean gradient
    fsdp.clip_grad_norm(1.0);                          // of the whole gradient
    optimizer.step();
  }
  const FsdpMemory memory = fsdp.memory();
  std::printf("rank %d of %d: trained; shards %zu KiB, gradients %zu KiB, at most %zu KiB gathered\n", comm.rank(),
              comm.size(), memory.shards >> 10, memory.gradients >> 10, memory.peak_gathered >> 10);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
