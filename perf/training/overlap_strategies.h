// What overlap_bench trains with: DDP or FSDP behind one interface, and the calls that a step of it makes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"
#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {

/// The calls of one step, in order, without computation.
struct PlannedCall {
  Collective collective = Collective::all_reduce;
  std::size_t count = 0;  // as in Call
};

/// A way to train, set up on a communicator; gone when the object is.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual void zero_grad() = 0;
  virtual std::vector<PlannedCall> calls() const = 0;  // of the last step
  virtual std::size_t pieces() const = 0;              // buckets or units
};

class Ddp final : public Strategy {
 public:
  Ddp(training::Gpt& model, Communicator comm, std::size_t bytes)
      : ddp_(*model, std::move(comm), {.first_bucket_bytes = bytes, .bucket_bytes = bytes}) {}
  void zero_grad() override { ddp_.zero_grad(); }
  std::vector<PlannedCall> calls() const override {
    std::vector<PlannedCall> calls;
    for (const training::Bucket& bucket : ddp_.buckets()) calls.push_back({Collective::all_reduce, bucket.elements});
    return calls;
  }
  std::size_t pieces() const override { return ddp_.buckets().size(); }

 private:
  training::DistributedDataParallel ddp_;
};

class Fsdp final : public Strategy {
 public:
  Fsdp(training::Gpt& model, Communicator comm, std::size_t bytes)
      : ranks_(static_cast<std::size_t>(comm.size())), fsdp_(*model, std::move(comm), {.units = policy(bytes)}) {}
  void zero_grad() override {
    before_ = fsdp_.stats();
    fsdp_.zero_grad();
  }
  /// Buckets of equal size: their number and total bytes are those of the last step.
  std::vector<PlannedCall> calls() const override {
    const training::FsdpStats now = fsdp_.stats();
    std::vector<PlannedCall> calls;
    add(calls, Collective::all_gather, now.gathers - before_.gathers, now.gathered_bytes - before_.gathered_bytes);
    add(calls, Collective::reduce_scatter, now.reductions - before_.reductions,
        now.reduced_bytes - before_.reduced_bytes);
    return calls;
  }
  std::size_t pieces() const override { return fsdp_.units().size(); }

 private:
  static training::UnitPolicy policy(std::size_t bytes) {
    return training::by_size(static_cast<std::int64_t>(std::max<std::size_t>(1, bytes / sizeof(float))));
  }
  void add(std::vector<PlannedCall>& calls, Collective collective, std::size_t number, std::size_t bytes) const {
    const std::size_t elements = bytes / sizeof(float) / ranks_;
    for (std::size_t i = 0; i < number; ++i) {
      calls.push_back({collective, elements / number + (i < elements % number ? 1 : 0)});
    }
  }
  std::size_t ranks_;
  training::FullyShardedDataParallel fsdp_;
  training::FsdpStats before_;
};

}  // namespace tutti::perf
