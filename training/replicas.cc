#include "training/replicas.h"

#include <ATen/Version.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "training/abort.h"
#include "training/hash.h"
#include "training/streams.h"

namespace tutti::training {
namespace {

/// Describes a tensor by all that must be the same on all ranks before bytes can be exchanged.
std::string description_of(const NamedTensor& item) {
  std::string text = fmt::format("{} {} {}", item.name, c10::toString(item.tensor.scalar_type()),
                                 item.tensor.requires_grad() ? "trained" : "frozen");
  for (std::int64_t extent : item.tensor.sizes()) text += fmt::format(" {}", extent);
  for (std::int64_t stride : item.tensor.strides()) text += fmt::format(",{}", stride);
  return text;
}

}  // namespace

Replicas::Replicas(const torch::nn::Module& module, Communicator communicator, std::string owner)
    : comm_(std::move(communicator)),
      owner_(std::move(owner)),
      parameters_(parameters_of(module)),
      buffers_(buffers_of(module)),
      form_(module) {
  for (const NamedTensor& item : parameters_) check_usable(item);
  for (const NamedTensor& item : buffers_) check_usable(item);
  check_same_model();
  broadcast(parameters_, 0);
  broadcast(buffers_, 0);
  check_equal();
}

void Replicas::check_unchanged() {
  const std::string change = form_.change();
  if (!change.empty()) fail_on_all(comm_, sentence_about(change, owner_));
}

void Replicas::check_usable(const NamedTensor& item) const {
  const auto fail = [&](const std::string& what) {
    fail_on_all(comm_, fmt::format("{}: '{}' {}", owner_, item.name, what));
  };
  if (!is_communicable(item.tensor)) {
    fail(fmt::format("is a {} on {}; only dense tensors on the CPU or a CUDA device can be used",
                     c10::str(item.tensor.layout()), item.tensor.device().str()));
  }
  const NamedTensor& first = this->item(0);
  if (item.tensor.device() != first.tensor.device()) {
    fail(fmt::format("is on {} and '{}' on {}; expected all of a rank's tensors on one device",
                     item.tensor.device().str(), first.name, first.tensor.device().str()));
  }
  if (!item.tensor.is_non_overlapping_and_dense()) {
    fail("has gaps or overlaps in its memory; make it contiguous");
  }
}

const NamedTensor& Replicas::item(std::size_t index) const {
  return index < parameters_.size() ? parameters_[index] : buffers_[index - parameters_.size()];
}

template <class Value>
std::vector<std::uint64_t> Replicas::of_each(Value&& value) const {
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < parameters_.size() + buffers_.size(); ++i) values.push_back(value(item(i)));
  return values;
}

void Replicas::compare(const std::vector<std::uint64_t>& values, const char* difference) {
  const auto size = static_cast<std::size_t>(comm_.size());
  std::vector<std::uint64_t> all(values.size() * size);
  comm_.all_gather(values.data(), all.data(), values.size(), DataType::u64);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t other = 1; other < size; ++other) {
      if (all[other * values.size() + i] == all[i]) continue;
      throw Error(Code::invalid_argument,
                  fmt::format("{}: '{}' {} on rank {} and on rank 0", owner_, item(i).name, difference, other));
    }
  }
}

void Replicas::check_same_model() {
  const std::uint64_t count = parameters_.size() + buffers_.size();
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm_.size()));
  comm_.all_gather(&count, counts.data(), 1, DataType::u64);
  for (std::size_t other = 1; other < counts.size(); ++other) {
    if (counts[other] == counts[0]) continue;
    throw Error(Code::invalid_argument,
                fmt::format("{}: the model of rank {} has {} parameters and buffers, that of rank 0 has {}", owner_,
                            other, counts[other], counts[0]));
  }
  compare(of_each([](const NamedTensor& each) {
            const std::string text = description_of(each);
            return ByteHash::of(text.data(), text.size());
          }),
          "differs in name, type, shape, strides or requires_grad");
}

void Replicas::check_equal() {
  compare(of_each([](const NamedTensor& each) {
            const torch::Tensor here = each.tensor.cpu();
            return ByteHash::of(here.data_ptr(), here.nbytes());
          }),
          "holds different values");
}

void Replicas::broadcast(std::vector<NamedTensor>& tensors, int root) {
  for (NamedTensor& each : tensors) {
    void* bytes = each.tensor.data_ptr();
    if (each.tensor.nbytes() == 0) continue;
    comm_.broadcast(bytes, bytes, each.tensor.nbytes(), DataType::u8, root, in_stream_of(each.tensor));
    each.tensor.unsafeGetTensorImpl()->bump_version();  // a graph that keeps the tensor finds that it has changed
  }
}

void check_same_instructions(const std::vector<NamedTensor>& parameters, Communicator comm, const std::string& owner) {
  constexpr std::size_t kLength = 16;
  std::array<char, kLength> mine{};  // ends with a zero
  if (!parameters.empty() && parameters[0].tensor.is_cpu()) at::get_cpu_capability().copy(mine.data(), kLength - 1);
  std::vector<std::array<char, kLength>> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(mine.data(), all.data(), kLength, DataType::u8);
  for (std::size_t other = 1; other < all.size(); ++other) {
    if (all[other] == all[0] || all[other][0] == 0 || all[0][0] == 0) continue;  // or on a device
    throw Error(Code::invalid_argument,
                fmt::format("{}: PyTorch calculates by {} on rank {} and by {} on rank 0, so that copies would part by "
                            "roundings; ATEN_CPU_CAPABILITY=default (or avx2) on all ranks makes them alike",
                            owner, all[other].data(), other, all[0].data()));
  }
}

void Replicas::broadcast_buffers(int root) { broadcast(buffers_, root); }

}  // namespace tutti::training
