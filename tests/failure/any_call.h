// Any collective with any arguments, on buffers whose neighbourhood is watched.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::testing {

struct AnyCall {
  Collective kind = Collective::all_reduce;
  std::size_t count = 1;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool deterministic = false;

  bool reduces() const { return tutti::reduces(kind); }
  bool rooted() const { return has_root(kind); }
  std::string text() const {
    return std::string(name_of(kind)) + " " + std::to_string(count) + " x " + name_of(type) + " " + name_of(op) +
           " root " + std::to_string(root) + (deterministic ? " deterministic" : "");
  }
};

inline constexpr Collective kKinds[] = {Collective::all_reduce,  Collective::reduce_scatter, Collective::all_gather,
                                        Collective::broadcast,   Collective::reduce,         Collective::all_to_all,
                                        Collective::all_to_allv, Collective::gather,         Collective::scatter,
                                        Collective::barrier};

/// `most` elements at most, small counts as likely as large ones.
inline AnyCall random_call(std::mt19937& random, int ranks, std::size_t most) {
  constexpr DataType types[] = {DataType::i32, DataType::f32, DataType::f64, DataType::i64, DataType::u8};
  constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max};
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  AnyCall call;
  call.kind = kKinds[pick(std::size(kKinds))];
  call.type = types[pick(std::size(types))];
  call.op = ops[pick(std::size(ops))];
  call.root = static_cast<int>(pick(static_cast<std::size_t>(ranks)));
  const double log_most = std::log2(static_cast<double>(most));
  call.count = static_cast<std::size_t>(std::exp2(std::uniform_real_distribution<double>(0, log_most)(random)));
  return call;
}

/// Buffers of one rank, registered or plain, between fences that must stay as they are.
class Field {
 public:
  Field(std::size_t bytes, bool registered) : bytes_(bytes) {
    for (int side = 0; side < 2; ++side) {
      if (registered) {
        registered_[side] = Buffer<unsigned char>(bytes + 2 * kFence);
        base_[side] = registered_[side].data();
      } else {
        plain_[side].resize(bytes + 2 * kFence);
        base_[side] = plain_[side].data();
      }
      std::memset(base_[side], kMark, kFence);
      std::memset(base_[side] + kFence + bytes, kMark, kFence);
    }
    mark_recv();
  }
  unsigned char* send() { return base_[0] + kFence; }
  unsigned char* recv() { return base_[1] + kFence; }
  std::size_t bytes() const { return bytes_; }

  /// Whether the fences, and all of recv behind `used` bytes, are as they were.
  bool untouched_around(std::size_t used) const {
    for (int side = 0; side < 2; ++side) {
      for (std::size_t i = 0; i < kFence; ++i) {
        if (base_[side][i] != kMark || base_[side][kFence + bytes_ + i] != kMark) return false;
      }
    }
    for (std::size_t i = used; i < bytes_; ++i) {
      if (base_[1][kFence + i] != kMark) return false;
    }
    return true;
  }
  void mark_recv() { std::memset(recv(), kMark, bytes_); }

 private:
  static constexpr std::size_t kFence = 4096;
  static constexpr unsigned char kMark = 0xA5;
  std::size_t bytes_;
  Buffer<unsigned char> registered_[2];
  std::vector<unsigned char> plain_[2];
  unsigned char* base_[2];
};

namespace detail {

template <class Visit>
void visit_type(DataType type, Visit&& visit) {
  switch (type) {
    case DataType::i32: return visit(std::int32_t{});
    case DataType::f32: return visit(float{});
    case DataType::f64: return visit(double{});
    case DataType::i64: return visit(std::int64_t{});
    case DataType::u8: return visit(std::uint8_t{});
    default: throw std::logic_error("a type that AnyCall does not use");
  }
}

/// Returns the value of every element of `from`'s send buffer.
inline int value_of(int from, int salt) { return 1 + (from + salt) % 3; }

inline int reduced(const AnyCall& call, int ranks, int salt) {
  int all = value_of(0, salt);
  for (int r = 1; r < ranks; ++r) {
    const int v = value_of(r, salt);
    switch (call.op) {
      case ReduceOp::prod: all *= v; break;
      case ReduceOp::min: all = std::min(all, v); break;
      case ReduceOp::max: all = std::max(all, v); break;
      default: all += v;
    }
  }
  return all;
}

}  // namespace detail

/// Elements that the rank's recv buffer has under this call; 0 when it receives nothing.
inline std::size_t received_elements(const AnyCall& call, int rank, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  switch (call.kind) {
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::all_to_allv: return call.count * n;
    case Collective::gather: return rank == call.root ? call.count * n : 0;
    case Collective::reduce: return rank == call.root ? call.count : 0;
    case Collective::barrier: return 0;
    default: return call.count;
  }
}

/// Makes the call. All send elements of rank r are value_of(r, salt).
inline void perform(Communicator& comm, const AnyCall& call, Field& field, int salt) {
  const std::size_t most = call.count * static_cast<std::size_t>(comm.size());
  detail::visit_type(call.type, [&](auto zero) {
    using T = decltype(zero);
    auto* send = reinterpret_cast<T*>(field.send());
    std::fill_n(send, std::min(most, field.bytes() / sizeof(T)), static_cast<T>(detail::value_of(comm.rank(), salt)));
  });
  CallOptions options;
  options.deterministic = call.deterministic;
  void* send = field.send();
  void* recv = field.recv();
  switch (call.kind) {
    case Collective::all_reduce: return comm.all_reduce(send, recv, call.count, call.type, call.op, options);
    case Collective::reduce_scatter: return comm.reduce_scatter(send, recv, call.count, call.type, call.op, options);
    case Collective::all_gather: return comm.all_gather(send, recv, call.count, call.type, options);
    case Collective::broadcast: return comm.broadcast(send, recv, call.count, call.type, call.root, options);
    case Collective::reduce: return comm.reduce(send, recv, call.count, call.type, call.op, call.root, options);
    case Collective::all_to_all: return comm.all_to_all(send, recv, call.count, call.type, options);
    case Collective::all_to_allv: {
      const std::vector<std::size_t> counts(static_cast<std::size_t>(comm.size()), call.count);
      std::vector<std::size_t> offsets;
      for (std::size_t r = 0; r < counts.size(); ++r) offsets.push_back(r * call.count);
      return comm.all_to_allv(send, counts.data(), offsets.data(), recv, counts.data(), offsets.data(), call.type,
                              options);
    }
    case Collective::gather: return comm.gather(send, recv, call.count, call.type, call.root, options);
    case Collective::scatter: return comm.scatter(send, recv, call.count, call.type, call.root, options);
    default: return comm.barrier();
  }
}

/// Empty when a call that returned well has brought what it must have; else what is wrong.
inline std::string check(const AnyCall& call, Field& field, int rank, int ranks, int salt) {
  const std::size_t elements = received_elements(call, rank, ranks);
  std::string wrong;
  detail::visit_type(call.type, [&](auto zero) {
    using T = decltype(zero);
    const auto* recv = reinterpret_cast<const T*>(field.recv());
    for (std::size_t i = 0; i < elements && wrong.empty(); ++i) {
      int expected = 0;
      switch (call.kind) {
        case Collective::broadcast:
        case Collective::scatter: expected = detail::value_of(call.root, salt); break;
        case Collective::all_gather:
        case Collective::all_to_all:
        case Collective::all_to_allv:
        case Collective::gather: expected = detail::value_of(static_cast<int>(i / call.count), salt); break;
        default: expected = detail::reduced(call, ranks, salt);
      }
      if (recv[i] != static_cast<T>(expected)) {
        wrong = call.text() + ": element " + std::to_string(i) + " on rank " + std::to_string(rank) + " is " +
                std::to_string(recv[i]) + ", not " + std::to_string(expected);
      }
    }
    if (wrong.empty() && !field.untouched_around(elements * sizeof(T))) {
      wrong = call.text() + ": wrote outside its buffer on rank " + std::to_string(rank);
    }
  });
  return wrong;
}

/// Random calls of at most `most` elements, each checked, until one fails; the barrier after it is to fail as well.
/// Place: of a rank among processes or on hosts (failure/processes.h, hosts/job.h).
template <class Place>
void call_until_failure(const Place& place, Communicator comm, std::uint32_t seed, std::size_t most, bool registered) {
  Field field(most * 8 * static_cast<std::size_t>(place.size()), registered);
  std::mt19937 random(seed);
  for (int salt = 0;; ++salt) {
    const AnyCall call = random_call(random, place.size(), most);
    if (place.fails([&] { perform(comm, call, field, salt); })) break;
    if (const std::string wrong = check(call, field, place.rank(), place.size(), salt); !wrong.empty()) {
      place.give_up(wrong);
    }
    field.mark_recv();
    place.step();
  }
  place.fails([&] { comm.barrier(); });
}

}  // namespace tutti::testing
