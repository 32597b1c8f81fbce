#include "training/trainers/device.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>

#include "training/mesh/mesh.h"
#include "training/streams.h"

namespace tutti::training {
namespace {

void make_deterministic() {
  at::Context& context = at::globalContext();
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // else cuBLAS may add in another order each time
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicCuDNN(true);
  // Backward of the fused forms of attention adds in whatever order its blocks come.
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

}  // namespace

void check_device(const std::string& program, const std::string& device, const std::string& backend) {
  if (device == "cpu") return;
  const auto refuse = [&](const std::string& why) {
    throw Error(Code::invalid_argument, fmt::format("{}: --device {}: {}; use --device cpu", program, device, why));
  };
  if (!torch::cuda::is_available()) refuse("this LibTorch has no CUDA device");
  if (!supports(Memory::device)) refuse("this build of Tutti does not communicate in GPU memory");
  if (backend != "tutti" && backend != "nccl") refuse(fmt::format("backend {} serves host memory only", backend));
}

c10::Device choose_device(const std::string& device, const Communicator& comm, bool deterministic) {
  if (device == "cpu") return torch::kCPU;
  if (deterministic) make_deterministic();
  const auto count = static_cast<int>(torch::cuda::device_count());
  const c10::Device chosen(torch::kCUDA, static_cast<c10::DeviceIndex>(place_on_host(comm) % count));
  make_current(chosen);
  return chosen;
}

}  // namespace tutti::training
