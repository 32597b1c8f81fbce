// One parameter of FullyShardedDataParallel: this rank's rows of it, and the whole that comes and goes.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "training/tensors.h"

namespace tutti::training {

/// Rows of dimension 0 over the ranks: rank r has rows r * share to (r + 1) * share - 1, those past `rows` are padding.
struct RowLayout {
  std::int64_t rows = 1;
  std::int64_t row_elements = 1;
  std::int64_t share = 1;  // rows of each rank, padding included
  std::int64_t first = 0;  // this rank's first row
  std::int64_t own = 0;    // this rank's rows, without padding
  int ranks = 1;

  RowLayout() = default;
  RowLayout(at::IntArrayRef sizes, int rank, int ranks);
  std::int64_t piece() const { return share * row_elements; }  // elements of each rank, padding included
  std::int64_t padding() const { return (share * ranks - rows) * row_elements; }
};

class ShardedParameter {
 public:
  struct Options {
    torch::ScalarType compute_type;
    std::optional<torch::Device> compute_device;  // given: the whole is there, in memory of LibTorch
    bool keep_full = false;
  };
  /// Takes over the parameter of a module: from now on it has the type and the device to compute with. Its shard stays
  /// where the parameter was.
  /// With `keep_full`, and if both are its own, the shard lies inside the whole parameter, else in memory of its own.
  ShardedParameter(NamedTensor item, int rank, int ranks, const Options& options);

  const std::string& name() const { return name_; }
  const RowLayout& layout() const { return layout_; }
  bool trained() const { return trained_; }
  /// Returns what callers did since to the shard, or to the memory of the module's parameter, that is refused: a clause
  /// without its subject, or null. The rest is ModelForm's.
  const char* change() const;
  torch::Tensor& full() { return full_; }
  torch::Tensor& shard() { return shard_; }
  const torch::Tensor& shard() const { return shard_; }
  torch::ScalarType compute_type() const { return full_.scalar_type(); }
  torch::ScalarType type() const { return shard_.scalar_type(); }
  const void* storage() const { return storage_.unsafeGetStorageImpl(); }
  bool lies_in_full() const { return lies_in_full_; }
  /// The shard's memory with its padding: [piece].
  const torch::Tensor& padded_shard() const { return padded_shard_; }

  // The whole parameter's memory.
  bool has_memory() const { return flat_.defined(); }
  void take_memory();
  void free_memory();
  /// All ranks' rows with padding: [ranks * piece]. REQUIRES: has_memory().
  const torch::Tensor& flat() const { return flat_; }
  std::size_t full_bytes() const;   // padding included
  std::size_t shard_bytes() const;  // padding included

  /// Adds to the shard's gradient; when there is none, `padded` becomes it. [piece], of the shard's type.
  void add_gradient(const torch::Tensor& padded);
  /// Adds in the same way, but a new gradient lies in the full one's memory, which stays as long. It is of the shard's
  /// type, and contiguous.
  void add_gradient_inside(const torch::Tensor& full_gradient, const torch::Tensor& padded);
  void drop_gradient();
  std::size_t gradient_bytes() const;

 private:
  torch::Tensor rows_of(const torch::Tensor& padded) const;

  std::string name_;
  RowLayout layout_;
  torch::Tensor full_, flat_;
  torch::Tensor shard_, padded_shard_;
  torch::Tensor gradient_memory_;  // what the shard's gradient lies in
  const bool trained_;
  Options options_;
  bool lies_in_full_;
  c10::Storage storage_;  // kept: if the parameter is given another one, no other tensor shall be taken for it
};

}  // namespace tutti::training
