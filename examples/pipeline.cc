// Pipeline training: each rank holds some layers of the model; micro-batches go through them one behind the other.
//   run_ranks.sh 2 ./pipeline        or mpirun -n 2, torchrun --no-python, srun
#include <torch/torch.h>
#include <tutti/training/pipeline/pipeline.h>

#include <cstdio>
#include <exception>

int main() try {
  using namespace tutti::training;
  tutti::Communicator comm = tutti::Communicator::from_environment();
  torch::set_num_threads(1);
  constexpr int kLayers = 8, kMicroBatches = 4;

  // This rank's layers: an equal share of them (partition.h cuts by measured cost).
  torch::manual_seed(comm.rank());
  torch::nn::Sequential stage;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (layer * comm.size() / kLayers != comm.rank()) continue;
    stage->push_back(torch::nn::Linear(layer == 0 ? 8 : 64, layer + 1 == kLayers ? 1 : 64));
    if (layer + 1 < kLayers) stage->push_back(torch::nn::Tanh());
  }
  const auto forward = [&](const torch::Tensor& x) { return stage->forward(x); };
  const PipelineLoss loss{
      [](const torch::Tensor& y, const torch::Tensor& target) { return torch::mse_loss(y, target); }, {}};
  const Schedule schedule = one_forward_one_backward(comm.size(), kMicroBatches);
  Pipeline pipeline({{stage.ptr(), forward}}, comm, schedule, loss);
  torch::optim::AdamW optimizer(stage->parameters(), torch::optim::AdamWOptions(1e-3));

  PipelineRun run;
  torch::manual_seed(1);  // the first stage's inputs and the last stage's targets belong together
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor x = torch::randn({64, 8}), y = x.prod(1, /*keepdim=*/true).tanh();
    optimizer.zero_grad();
    // Gradients as of accumulation.
    run = pipeline.run(x.tensor_split(kMicroBatches), y.tensor_split(kMicroBatches), {.step = step});
    optimizer.step();
  }
  std::printf("rank %d of %d: trained, last loss %.3f, at most %d activations kept\n", comm.rank(), comm.size(),
              run.loss, run.peak_live);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
