// Collectives on device memory against the same ones on host memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"
#include "tests/device/device_buffers.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

inline std::size_t blocks(Collective collective, int ranks, bool input) {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::scatter: return input ? static_cast<std::size_t>(ranks) : 1;
    case Collective::all_gather:
    case Collective::gather: return input ? 1 : static_cast<std::size_t>(ranks);
    case Collective::all_to_all: return static_cast<std::size_t>(ranks);
    default: return 1;
  }
}

inline void call(Communicator& comm, Collective collective, const void* send, void* recv, std::size_t count,
                 DataType type, ReduceOp op, int root, const CallOptions& options) {
  switch (collective) {
    case Collective::all_reduce: return comm.all_reduce(send, recv, count, type, op, options);
    case Collective::reduce_scatter: return comm.reduce_scatter(send, recv, count, type, op, options);
    case Collective::all_gather: return comm.all_gather(send, recv, count, type, options);
    case Collective::broadcast: return comm.broadcast(send, recv, count, type, root, options);
    case Collective::reduce: return comm.reduce(send, recv, count, type, op, root, options);
    case Collective::all_to_all: return comm.all_to_all(send, recv, count, type, options);
    case Collective::gather: return comm.gather(send, recv, count, type, root, options);
    case Collective::scatter: return comm.scatter(send, recv, count, type, root, options);
    default: return;
  }
}

inline constexpr Collective kAll[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                      Collective::broadcast,  Collective::reduce,         Collective::all_to_all,
                                      Collective::gather,     Collective::scatter};

// The same call on host memory and on device memory, deterministic where it reduces: the same bits.
inline void compare_with_host(Communicator& comm, DeviceBuffers& memory, unsigned seed) {
  std::minstd_rand same(seed);
  for (const Collective collective : kAll) {
    for (const std::size_t count : {1u, 17u, 1000u, 40000u}) {
      const auto type = static_cast<DataType>(same() % kDataTypes);
      auto op = static_cast<ReduceOp>(same() % kReduceOps);
      if (!applies(op, type) || !reduces(collective)) op = ReduceOp::sum;
      const int root = has_root(collective) ? static_cast<int>(same() % static_cast<unsigned>(comm.size())) : 0;
      const std::size_t in_bytes = blocks(collective, comm.size(), true) * count * size_of(type);
      const std::size_t out_bytes = blocks(collective, comm.size(), false) * count * size_of(type);
      std::minstd_rand own(seed + 77 + static_cast<unsigned>(comm.rank()));
      std::vector<std::byte> input(in_bytes);
      for (std::byte& b : input) b = static_cast<std::byte>(own());
      std::vector<std::byte> expected(out_bytes, std::byte{9});
      const CallOptions options{.deterministic = reduces(collective), .factor = 0.5 + comm.rank()};
      call(comm, collective, input.data(), expected.data(), count, type, op, root, options);

      std::byte* send = memory.allocate(in_bytes);
      std::byte* recv = memory.allocate(out_bytes);
      memory.write(send, input);
      memory.write(recv, std::vector<std::byte>(out_bytes, std::byte{9}));
      CallOptions on_device = options;
      on_device.stream = memory.stream();
      call(comm, collective, send, recv, count, type, op, root, on_device);
      const bool whole = !has_root(collective) || collective == Collective::broadcast ||
                         collective == Collective::scatter || comm.rank() == root;
      if (whole && memory.read(recv, out_bytes) != expected) {
        throw std::runtime_error(std::string(name_of(collective)) + " of " + std::to_string(count) + " x " +
                                 name_of(type) + ", " + name_of(op) + ": other bits than on the host, by " +
                                 comm.explain_last_call().algorithm);
      }
      memory.synchronize();
    }
  }
}

/// A call on device memory, and the same on host memory; how the first one went.
struct Step {
  Collective collective = Collective::all_reduce;
  std::size_t count = 1;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  double factor = 1.0;
};

inline std::string check_step(Communicator& comm, DeviceBuffers& memory, const Step& s, CUstream stream) {
  const std::size_t element = size_of(s.type);
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::size_t in_blocks = blocks(s.collective, comm.size(), true);
  const std::size_t out_blocks = blocks(s.collective, comm.size(), false);
  const std::size_t most = std::max(in_blocks, out_blocks);
  std::vector<std::byte> input(in_blocks * s.count * element);
  for (std::size_t i = 0; i < input.size() / element; ++i) {
    write_element(s.type, input.data() + i * element, comm.rank(), i);
  }
  // Where the input lies in a buffer that is both, and the output.
  const std::size_t block = s.count * element;
  const std::size_t in_at = s.in_place && s.collective == Collective::all_gather ? me * block : 0;
  const std::size_t out_at = s.in_place && s.collective == Collective::reduce_scatter ? me * block : 0;
  const auto run = [&](std::byte* both, std::byte* send, std::byte* recv, CUstream on) {
    CallOptions options;
    options.factor = s.factor;
    options.stream = on;
    if (s.in_place) {
      call(comm, s.collective, both + in_at, both + out_at, s.count, s.type, s.op, s.root, options);
    } else {
      call(comm, s.collective, send, recv, s.count, s.type, s.op, s.root, options);
    }
  };
  const std::size_t out_bytes = out_blocks * block;
  std::vector<std::byte> both(most * block, std::byte{9});
  std::copy(input.begin(), input.end(), both.begin() + static_cast<std::ptrdiff_t>(in_at));
  std::vector<std::byte> expected(out_bytes, std::byte{9});
  std::byte* const send_there = memory.allocate(input.size());
  std::byte* const recv_there = memory.allocate(out_bytes);
  std::byte* const both_there = memory.allocate(both.size());
  memory.write(send_there, input);
  memory.write(recv_there, expected);
  memory.write(both_there, both);
  run(both_there, send_there, recv_there, stream);
  const Explanation how = comm.explain_last_call();
  must_cuda(memory.driver().StreamSynchronize(stream), "cuStreamSynchronize");
  run(both.data(), input.data(), expected.data(), nullptr);
  if (s.in_place) {
    const auto from = both.begin() + static_cast<std::ptrdiff_t>(out_at);
    expected.assign(from, from + static_cast<std::ptrdiff_t>(out_bytes));
  }
  const bool has_result = s.collective != Collective::reduce || comm.rank() == s.root;
  const std::vector<std::byte> got = memory.read(s.in_place ? both_there + out_at : recv_there, out_bytes);
  if (has_result && got != expected) {
    const auto at = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
    throw std::runtime_error(std::string(name_of(s.collective)) + " of " + std::to_string(s.count) + " x " +
                             name_of(s.type) + ", " + name_of(s.op) + ", root " + std::to_string(s.root) +
                             (s.in_place ? ", in place" : "") + ": byte " + std::to_string(at) +
                             " is not that of the host; " + how.algorithm + ": " + how.reason);
  }
  // Of a buffer that is not in place the input stays as it was.
  MUST(s.in_place || memory.read(send_there, input.size()) == input);
  return how.reason;
}

/// Rank i has (i + 2 j) % 5 units for rank j, a unit being so many elements.
inline void check_all_to_allv(Communicator& comm, DeviceBuffers& memory, std::size_t unit) {
  const auto n = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<std::size_t> send_counts, send_offsets, recv_counts, recv_offsets;
  std::size_t sent = 0;
  std::size_t received = 0;
  for (std::size_t r = 0; r < n; ++r) {
    send_counts.push_back((me + 2 * r) % 5 * unit);
    recv_counts.push_back((r + 2 * me) % 5 * unit);
    send_offsets.push_back(sent);
    recv_offsets.push_back(received);
    sent += send_counts.back();
    received += recv_counts.back();
  }
  std::vector<std::uint32_t> input(sent + 1);
  for (std::size_t i = 0; i < sent; ++i) input[i] = static_cast<std::uint32_t>(me * 100000000 + i);
  std::byte* send = memory.allocate(4 * (sent + 1));
  std::byte* recv = memory.allocate(4 * (received + 1));
  memory.write(send, std::as_bytes(std::span(input)));
  comm.all_to_allv(send, send_counts.data(), send_offsets.data(), recv, recv_counts.data(), recv_offsets.data(),
                   DataType::u32, {.stream = memory.stream()});
  const std::vector<std::byte> got = memory.read(recv, 4 * (received + 1));
  for (std::size_t r = 0; r < n; ++r) {
    std::size_t begin = 0;  // of what r has for me
    for (std::size_t j = 0; j < me; ++j) begin += (r + 2 * j) % 5 * unit;
    for (std::size_t i = 0; i < recv_counts[r]; ++i) {
      std::uint32_t value = 0;
      std::memcpy(&value, got.data() + 4 * (recv_offsets[r] + i), 4);
      MUST(value == r * 100000000 + begin + i);
    }
  }
}

}  // namespace tutti::testing
