// Data-parallel training: each rank works on its own rows, and all hold the same model.
//   run_ranks.sh 2 ./ddp_in_30_lines        or mpirun -n 2, torchrun --no-python, srun
#include <torch/torch.h>
#include <tutti/training/ddp/ddp.h>

#include <cstdio>
#include <exception>

int main() try {
  tutti::Communicator comm = tutti::Communicator::from_environment();
  torch::manual_seed(comm.rank());  // ranks start apart; DistributedDataParallel gives all of them rank 0's model
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  tutti::training::DistributedDataParallel ddp(*model, comm);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));

  for (int step = 0; step < 200; ++step) {
    const torch::Tensor x = torch::randn({32, 8}), y = x.prod(1, /*keepdim=*/true).tanh();  // this rank's rows
    ddp.zero_grad();
    torch::mse_loss(model->forward(x), y).backward();  // returns with the mean of all ranks' gradients
    optimizer.step();
  }
  ddp.check_equal();  // throws if any rank's parameters differ
  std::printf("rank %d of %d: trained, the same model on every rank\n", comm.rank(), comm.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
