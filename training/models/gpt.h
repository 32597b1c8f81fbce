// A GPT for bytes: decoder-only transformer with learned positions, layer norm before each part, GELU and an output
// layer that shares the embedding's weights (Radford et al., "Language Models are Unsupervised Multitask Learners",
// 2019). The default is the size that nanoGPT trains on a CPU. A plain single-device module: it knows nothing of ranks.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tutti::training {

struct GptConfig {
  int layers = 4;
  int heads = 4;
  int width = 128;   // a multiple of heads
  int context = 64;  // the longest input
  int vocabulary = 256;
  double dropout = 0;
  bool bias = true;  // in linear layers and layer norms
};

/// One layer: x + attention(norm(x)), then x + mlp(norm(x)). [rows, time, width] to the same.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptConfig& config);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::Tensor attend(const torch::Tensor& x);

  int heads_;
  double dropout_;
  torch::nn::LayerNorm norm_attention_ = nullptr, norm_mlp_ = nullptr;
  torch::nn::Linear query_key_value_ = nullptr, attention_out_ = nullptr, mlp_in_ = nullptr, mlp_out_ = nullptr;
  torch::nn::Dropout drop_ = nullptr;
};
TORCH_MODULE(GptBlock);

/// The parts of a GPT, for code that runs some of them elsewhere (pipeline/gpt_stages.h).
struct GptParts {
  torch::Tensor embed(const torch::Tensor& tokens);  // [rows, time] i64 to [rows, time, width]
  torch::Tensor head(const torch::Tensor& x);        // [rows, time, width] to logits

  torch::nn::Embedding token = nullptr, position = nullptr;  // token's weight is the output layer's, too
  torch::nn::Dropout drop = nullptr;
  std::vector<GptBlock> blocks;
  torch::nn::LayerNorm norm = nullptr;
};

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptConfig& config);
  /// Tokens [rows, time <= context] i64 to logits [rows, time, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens);
  /// Mean cross entropy in nats per token.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);
  std::int64_t parameter_count() const;  // elements of trained parameters
  /// How forward runs its blocks, for what is applied from outside (activation checkpointing); empty: it calls them.
  using BlockRunner = std::function<torch::Tensor(GptBlock& block, int index, const torch::Tensor& x)>;
  void set_block_runner(BlockRunner runner) { run_block_ = std::move(runner); }
  const GptConfig& config() const { return config_; }
  GptParts parts() const { return {token_, position_, drop_, blocks_, norm_}; }  // handles, not copies

 private:
  GptConfig config_;
  torch::nn::Embedding token_ = nullptr, position_ = nullptr;  // token_'s weight is the output layer's, too
  torch::nn::Dropout drop_ = nullptr;
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm norm_ = nullptr;
  BlockRunner run_block_;
};
TORCH_MODULE(Gpt);

}  // namespace tutti::training
