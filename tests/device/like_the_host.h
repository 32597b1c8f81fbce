// Collectives on device memory against the same ones on host memory.
#pragma once

#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/conformance.h"
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

}  // namespace tutti::testing
