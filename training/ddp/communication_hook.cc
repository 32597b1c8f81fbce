#include "training/ddp/communication_hook.h"

#include <fmt/format.h>

#include <vector>

#include "training/streams.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

class Compress : public CommunicationHook {
 public:
  explicit Compress(torch::ScalarType type) : type_(type) {}

  Work start(Communicator& communicator, GradientBucket& bucket) override {
    const auto elements = count_of(bucket.gradients);
    if (bucket.gradients.scalar_type() == type_) {
      void* own = bucket.gradients.data_ptr();
      return communicator.all_reduce_async(own, own, elements, *floating_type_of(bucket.gradients), ReduceOp::avg,
                                           in_stream_of(bucket.gradients));
    }
    torch::Tensor& narrow = narrow_of(bucket);
    torch::NoGradGuard no_grad;
    // One pass over the bucket: torch computes in its type and rounds the result into the narrow one.
    torch::mul_out(narrow, bucket.gradients,
                   torch::scalar_tensor(1.0 / communicator.size(), bucket.gradients.options()));
    return communicator.all_reduce_async(narrow.data_ptr(), narrow.data_ptr(), elements, *floating_type_of(narrow),
                                         ReduceOp::sum, in_stream_of(narrow));
  }

  void finish(GradientBucket& bucket) override {
    if (bucket.gradients.scalar_type() == type_) return;
    torch::NoGradGuard no_grad;
    bucket.gradients.copy_(narrow_of(bucket));
  }

 private:
  torch::Tensor& narrow_of(const GradientBucket& bucket) {
    if (narrow_.size() <= bucket.index) narrow_.resize(bucket.index + 1);
    torch::Tensor& narrow = narrow_[bucket.index];
    if (!narrow.defined()) {
      narrow = empty_communicable({bucket.gradients.numel()}, type_, bucket.gradients.device());
    }
    return narrow;
  }

  torch::ScalarType type_;
  std::vector<torch::Tensor> narrow_;  // by bucket
};

}  // namespace

MakeCommunicationHook compress_gradients(torch::ScalarType type) {
  if (type != torch::kFloat16 && type != torch::kBFloat16) {
    throw Error(Code::invalid_argument,
                fmt::format("compress_gradients: type is {}; it can be Half or BFloat16", c10::toString(type)));
  }
  return [type] { return std::make_unique<Compress>(type); };
}

}  // namespace tutti::training
