// A unit of FullyShardedDataParallel: parameters that are gathered together and whose gradients are reduced together.
//
// How: a large parameter travels by a call of its own, from the shard's memory into the parameter's and from the
//   gradient's into its shard's: no copy. Small ones of one type share a call, through a packed block:
//   [rank][parameter][rows].
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/fsdp/sharded_parameter.h"
#include "training/streams.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

class Unit {
 public:
  struct Options {
    bool keep_full_gradients = false;             // Sharding::zero1
    std::optional<torch::Device> compute_device;  // given: what travels lies in host memory, copied there and back
    std::optional<torch::ScalarType> reduce_type;
    CallOptions call;
    std::shared_ptr<SideStream> side, reduction_side;  // of the gathers and of the reductions; units may share them
  };

  Unit(std::string name, std::vector<std::unique_ptr<ShardedParameter>> parameters, Communicator gathers,
       Communicator reductions, Options options);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<std::unique_ptr<ShardedParameter>>& parameters() const { return parameters_; }
  bool has_frozen() const { return has_frozen_; }
  bool has_trained() const { return !reductions_.empty(); }

  /// Returns true if it was gathered and no shard was written to since, as far as expire() and LibTorch's counters
  /// tell.
  bool is_unsharded() const;
  /// A shard is about to be written to. Finishes a gather under way first, which reads it.
  void expire();
  bool is_gathering() const { return gathering_; }
  void start_gather();
  void finish_gather();
  /// Frees the full parameters' memory. Finishes a gather under way first.
  void reshard();
  std::size_t bytes() const;           // of the whole parameters, padding included
  std::size_t gathered_bytes() const;  // of them, what is there now and holds no shards
  std::size_t reduced_bytes() const;

  /// Starts to reduce the full gradients to their mean over the ranks, and frees them. A missing one counts as zero.
  void start_reduction();
  bool is_reduced() const;
  /// The next mean, over the ranks with the same shards. REQUIRES: is_reduced(), or waits for it.
  void start_replica_mean(Communicator& replicas);
  /// Waits for both, and adds to the shards' gradients, save to those of `unused` (by place in parameters()).
  void finish_reduction(const std::vector<bool>& unused);

 private:
  /// Parameters of one call. One of them: it travels without copies, where its type and rows allow.
  struct Part {
    std::vector<std::size_t> members;
    torch::ScalarType type{};
    std::int64_t piece = 0;  // elements of each rank
    torch::Tensor send, recv;
    std::vector<torch::Tensor> gradients;  // whole ones, of the members; kept while they travel
    TensorWork work;
  };
  static std::vector<Part> make_parts(const std::vector<std::size_t>& members,
                                      const std::vector<torch::ScalarType>& types,
                                      const std::vector<std::unique_ptr<ShardedParameter>>& parameters);
  std::uint64_t shard_versions() const;
  c10::Device home() const { return parameters_.front()->shard().device(); }  // where shards are
  torch::Tensor block(std::int64_t elements, torch::ScalarType type) const;
  torch::Tensor gather_source(Part& part);
  torch::Tensor reduction_source(Part& part);

  std::string name_;
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  Communicator gather_comm_, reduce_comm_;
  Options options_;
  bool has_frozen_ = false;
  std::vector<Part> gathers_, reductions_;
  bool gathering_ = false, unsharded_ = false;
  std::uint64_t gathered_versions_ = 0;
};

}  // namespace tutti::training
