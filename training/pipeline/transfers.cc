#include "training/pipeline/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include "training/memory/pool.h"
#include "training/tensors.h"

namespace tutti::training {

std::string to_text(const TensorShape& shape) {
  std::string text = fmt::format("{} [", c10::toString(shape.type));
  for (std::size_t i = 0; i < shape.sizes.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape.sizes[i]);
  return text + "]";
}

TensorShape shape_of(const torch::Tensor& tensor) { return {tensor.scalar_type(), tensor.sizes().vec()}; }

Transfers::Transfers(Communicator communicator) : comm_(std::move(communicator)) {}

const TensorShape* Transfers::shape(int edge) const {
  const auto found = shapes_.find(edge);
  return found == shapes_.end() ? nullptr : &found->second;
}

void Transfers::send(const torch::Tensor& tensor, int edge, int peer) {
  Transfer& transfer = transfers_.emplace_back();
  transfer.send = true;
  transfer.edge = edge;
  transfer.peer = peer;
  {
    const torch::NoGradGuard no_grad;
    transfer.tensor = RegisteredPool::process()->empty(tensor.sizes(), tensor.scalar_type()).copy_(tensor);
  }
  const auto [known, first] = shapes_.try_emplace(edge, shape_of(tensor));
  if (first) {
    transfer.with_header = true;
    transfer.header[0] = static_cast<std::int64_t>(known->second.type);
    transfer.header[1] = tensor.dim();
    std::copy(known->second.sizes.begin(), known->second.sizes.end(), transfer.header.begin() + 2);
  }
  start(/*wait=*/false, 0);
  drop_finished();
}

Transfers::Ticket Transfers::recv(int edge, int peer) {
  Transfer& transfer = transfers_.emplace_back();
  transfer.edge = edge;
  transfer.peer = peer;
  start(/*wait=*/false, 0);
  return first_ + transfers_.size() - 1;
}

void Transfers::wait(Ticket ticket) {
  const auto place = static_cast<std::size_t>(ticket - first_);
  start(/*wait=*/true, place);
  if (transfers_[place].work) transfers_[place].work.wait();
}

torch::Tensor Transfers::take(Ticket ticket) {
  wait(ticket);
  Transfer& transfer = transfers_[static_cast<std::size_t>(ticket - first_)];
  transfer.taken = true;
  torch::Tensor tensor = std::move(transfer.tensor);
  start(/*wait=*/false, 0);
  drop_finished();
  return tensor;
}

void Transfers::start(bool wait, std::size_t place) {
  for (; started_ < transfers_.size(); ++started_) {
    Transfer& transfer = transfers_[started_];
    if (!transfer.send && shape(transfer.edge) == nullptr) {
      if (!transfer.header_work) {
        transfer.with_header = true;
        transfer.header_work = comm_.recv_async(transfer.header.data(), kHeader, DataType::i64, transfer.peer);
      }
      const bool must = wait && started_ <= place;
      if (!must && !transfer.header_work.test()) return;
      transfer.header_work.wait();
      const auto sizes = transfer.header.begin() + 2;
      shapes_[transfer.edge] = {static_cast<torch::ScalarType>(transfer.header[0]),
                                {sizes, sizes + transfer.header[1]}};
    }
    begin(transfer);
  }
}

void Transfers::begin(Transfer& transfer) {
  if (transfer.send && transfer.with_header) {
    transfer.header_work = comm_.send_async(transfer.header.data(), kHeader, DataType::i64, transfer.peer);
  }
  if (!transfer.send) {
    const TensorShape& agreed = shapes_.at(transfer.edge);
    transfer.tensor = RegisteredPool::process()->empty(agreed.sizes, agreed.type);
  }
  const auto count = count_of(transfer.tensor);
  if (count == 0) return;  // both sides know
  const DataType type = *floating_type_of(transfer.tensor);
  void* data = transfer.tensor.data_ptr();
  transfer.work = transfer.send ? comm_.send_async(data, count, type, transfer.peer)
                                : comm_.recv_async(data, count, type, transfer.peer);
}

void Transfers::drop_finished() {
  while (started_ > 0) {
    Transfer& transfer = transfers_.front();
    if (!transfer.send && !transfer.taken) return;
    if (transfer.header_work && !transfer.header_work.test()) return;
    if (transfer.work && !transfer.work.test()) return;
    if (transfer.header_work) transfer.header_work.wait();  // throws what went wrong
    if (transfer.work) transfer.work.wait();
    transfers_.pop_front();
    ++first_;
    --started_;
  }
}

void Transfers::finish() {
  if (!transfers_.empty()) start(/*wait=*/true, transfers_.size() - 1);
  for (Transfer& transfer : transfers_) {
    if (transfer.header_work) transfer.header_work.wait();
    if (transfer.work) transfer.work.wait();
  }
  first_ += transfers_.size();
  transfers_.clear();
  started_ = 0;
}

void Transfers::abandon() noexcept {
  const auto end = [](Work& work) {
    try {
      if (work) work.wait();
    } catch (const std::exception&) {
      // It has ended, which is all that matters here.
    }
  };
  for (Transfer& transfer : transfers_) {
    end(transfer.header_work);
    end(transfer.work);
  }
  transfers_.clear();
  started_ = 0;
}

}  // namespace tutti::training
