// Text as bytes: any files, one after another, are one stream; a token is a byte.
//
// Rows are drawn, not stored: row `row` of step `step` starts at an offset that depends on (seed, step, row) alone.
// With N ranks and B rows each, rank r takes rows r*B to (r+1)*B - 1 of the step; so one process that takes N*B rows
// sees exactly what the N ranks saw together, and a run can resume at any step.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::training {

class ByteText {
 public:
  /// The last `validation_share` (0 to 1) of the stream is kept for validation.
  explicit ByteText(std::vector<std::uint8_t> bytes, double validation_share = 0.1);
  /// Errors: invalid_argument naming the file that cannot be read.
  static ByteText load(const std::vector<std::string>& files, double validation_share = 0.1);

  std::span<const std::uint8_t> train() const { return {bytes_.data(), split_}; }
  std::span<const std::uint8_t> validation() const { return {bytes_.data() + split_, bytes_.size() - split_}; }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t split_ = 0;
};

struct Batch {
  torch::Tensor input;   // [rows, context] i64
  torch::Tensor target;  // [rows, context] i64: the byte that follows each input byte
};

/// Cheap to copy; `text` belongs to the caller and must stay valid.
class BatchSampler {
 public:
  /// Errors: invalid_argument when the text is shorter than one row (context + 1 bytes).
  BatchSampler(std::span<const std::uint8_t> text, int context, std::uint64_t seed);

  std::size_t offset(std::uint64_t step, std::uint64_t row) const;
  /// Rows first_row to first_row + rows - 1 of the step.
  Batch batch(std::uint64_t step, std::uint64_t first_row, int rows) const;

 private:
  std::span<const std::uint8_t> text_;
  std::size_t context_;
  std::uint64_t seed_;
};

}  // namespace tutti::training
