// llm.c's token files (.bin), and rows of them in the order in which llm.c's loader takes them.
//
//   const TokenFiles tokens({"train_000001.bin", "train_000002.bin"});
//   const TokenRows data(tokens, comm.size(), /*rows=*/4, /*context=*/1024);
//   for (std::uint64_t step = saved; step < steps; ++step) {
//     const Batch batch = data.batch(step, comm.rank());          // batch.input, batch.target: [4, 1024] i64
//   }
//
// File: 256 int32, of which [0] is the magic, [1] the version, [2] the count of tokens, and the rest is not looked at;
//   then the tokens. GPT-2: magic 20240520, version 1, u16. Llama 3: magic 20240801, version 7, u32. Little-endian. The
//   file's size must be just that (llm.c: llmc/dataloader.h; dev/data/data_common.py).
// Rows: in each file, step s of it has the n ranks at tokens s*n*B*T + rank*B*T; a rank reads B*T + 1 tokens there, the
//   inputs are the first B*T and the targets the last. A file has (count - 1) / (n*B*T) steps; then comes the next
//   file, and after the last the first again. So a run can resume at any step, and any thread can make any batch.
// Ownership: files are mapped, never loaded as a whole (of 2 GiB and more, too). TokenRows refers to TokenFiles, which
//   must outlive it.
// Errors: tutti::Error, invalid_argument, naming the file and what is wrong with it.
// Threads: everything here may be called by any number of threads at once.
// Limits: a file's count is an int32, so at most 2^31 - 1 tokens per file. No shuffling (llm.c has it as an option).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "training/data/mapped_file.h"
#include "training/data/text.h"

namespace tutti::training {

/// All files must hold tokens of one kind.
class TokenFiles {
 public:
  explicit TokenFiles(const std::vector<std::string>& paths);

  std::size_t size() const { return files_.size(); }
  std::uint64_t count(std::size_t file) const { return files_[file].count; }
  std::uint64_t total() const;
  const std::string& path(std::size_t file) const { return files_[file].mapping.path(); }

  /// Copies tokens first to first + out.size() - 1 of a file. REQUIRES: they are in it.
  void read(std::size_t file, std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  struct File {
    MappedFile mapping;
    std::uint64_t count;
  };
  int width_ = 0;
  std::vector<File> files_;
};

class TokenRows {
 public:
  /// Each step, each rank gets `rows` rows of `context` tokens. With a vocabulary, batch() refuses tokens that are not
  /// below it. Errors: a file too short for one step of all ranks.
  TokenRows(const TokenFiles& files, int ranks, int rows, int context, std::int64_t vocabulary = 0);

  /// Returns how many steps go through every file once.
  std::uint64_t steps_per_pass() const { return first_step_.back(); }
  Batch batch(std::uint64_t step, int rank) const;

 private:
  const TokenFiles& files_;
  int ranks_, rows_, context_;
  std::int64_t vocabulary_;
  std::vector<std::uint64_t> first_step_;  // of each file within a pass, then of the next pass
};

/// Write a token file, for tests and for users' own tokenizers.
void write_tokens(const std::string& path, std::span<const std::uint16_t> tokens);
void write_tokens(const std::string& path, std::span<const std::uint32_t> tokens);

}  // namespace tutti::training
