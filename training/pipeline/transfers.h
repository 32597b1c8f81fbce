// The tensors that a pipeline's ranks send each other. Part of Pipeline; a user never sees it.
//
// Each call hands a transfer over and returns; the communicator's thread carries them out in the order of the calls.
// The first activation on each edge (from stage s to s + 1) is preceded by a header with type and shape; later
// activations and all gradients of that edge must have them, too. Until the header has come, later transfers wait in
// this object and are started by the next call.
// Memory: what is sent is copied into a block of RegisteredPool::process(), which is kept until it has gone; what is
// received lies in such blocks. Between processes this costs less than the staging of other memory.
// Tensors on a device go by way of such blocks, too: a communicator runs a device's messages in the order of
//   their calls, and a schedule's sends and receives need not fit each other in that order. They come on the CPU.
// Errors: those of the communicator.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

struct TensorShape {
  torch::ScalarType type;
  std::vector<std::int64_t> sizes;
  bool operator==(const TensorShape&) const = default;
};
std::string to_text(const TensorShape& shape);
TensorShape shape_of(const torch::Tensor& tensor);

class Transfers {
 public:
  using Ticket = std::uint64_t;
  static constexpr std::size_t kMaxDimensions = 8;

  explicit Transfers(Communicator communicator);

  /// The shape agreed on for an edge; null before its first activation.
  const TensorShape* shape(int edge) const;
  void forget_shapes() { shapes_.clear(); }

  /// Dense tensors of f32, f64, f16 or bf16; of the edge's shape, when that is known.
  void send(const torch::Tensor& tensor, int edge, int peer);
  Ticket recv(int edge, int peer);
  /// Waits until the tensor has come.
  void wait(Ticket ticket);
  /// Waits for it and gives it away. Once for each ticket.
  torch::Tensor take(Ticket ticket);
  /// Waits for all.
  void finish();
  /// Waits, after the communicator was aborted, until nothing touches this object's memory.
  void abandon() noexcept;

 private:
  static constexpr std::size_t kHeader = 2 + kMaxDimensions;
  struct Transfer {
    bool send = false;
    bool with_header = false;
    int edge = 0;
    int peer = 0;
    torch::Tensor tensor;
    std::array<std::int64_t, kHeader> header{};
    Work header_work, work;
    bool taken = false;
  };

  /// Starts what can be started, in order; with `wait`, waits for headers until the transfer at `place` has started.
  void start(bool wait, std::size_t place);
  void begin(Transfer& transfer);
  void drop_finished();

  Communicator comm_;
  std::map<int, TensorShape> shapes_;
  std::deque<Transfer> transfers_;  // handed over and not yet done, in order
  Ticket first_ = 0;                // of transfers_[0]
  std::size_t started_ = 0;         // of transfers_
};

}  // namespace tutti::training
