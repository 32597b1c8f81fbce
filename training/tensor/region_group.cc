#include "training/tensor/region_group.h"

#include <cstdint>
#include <exception>
#include <vector>

#include "training/streams.h"
#include "training/tensor/region_steps.h"
#include "training/tensor/regions.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

torch::Tensor registered(at::IntArrayRef sizes, const torch::Tensor& like) {
  return empty_communicable(sizes, like.scalar_type(), like.device());
}

torch::Tensor registered_copy(const torch::Tensor& x) { return registered(x.sizes(), x).copy_(x); }

}  // namespace

InFlight::~InFlight() {
  try {
    if (work_) work_.wait();
  } catch (const std::exception&) {
    // It has ended; its error is or will be seen by another call.
  }
}

torch::Tensor InFlight::wait() {
  told_where("in region " + region_, [this] { std::exchange(work_, {}).wait(); });
  in_.reset();
  return std::move(out_);
}

torch::Tensor RegionGroup::all_reduce(const torch::Tensor& x, const char* call) {
  const DataType type = data_type_of(x, comm, named(call));
  const torch::Tensor out = registered_copy(x);
  told_where("in region " + named(call), [&] {
    comm.all_reduce(out.data_ptr(), out.data_ptr(), count_of(out), type, ReduceOp::sum, in_stream_of(out));
  });
  return out;
}

std::unique_ptr<InFlight> RegionGroup::all_gather(const torch::Tensor& x, const char* call) {
  const DataType type = data_type_of(x, comm, named(call));
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), comm.size());
  torch::Tensor out = registered(sizes, x);
  const torch::Tensor own = out.select(0, comm.rank()).copy_(x);
  Work work = comm.all_gather_async(own.data_ptr(), out.data_ptr(), count_of(own), type, in_stream_of(own));
  return std::make_unique<InFlight>(std::move(work), torch::Tensor(), std::move(out), named(call));
}

std::unique_ptr<InFlight> RegionGroup::reduce_scatter(const torch::Tensor& x, const char* call) {
  const DataType type = data_type_of(x, comm, named(call));
  torch::Tensor in = registered_copy(x);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] /= comm.size();
  torch::Tensor out = registered(sizes, x);  // not a part of `in`: that would keep all of it alive
  Work work =
      comm.reduce_scatter_async(in.data_ptr(), out.data_ptr(), count_of(out), type, ReduceOp::sum, in_stream_of(out));
  return std::make_unique<InFlight>(std::move(work), std::move(in), std::move(out), named(call));
}

}  // namespace tutti::training
