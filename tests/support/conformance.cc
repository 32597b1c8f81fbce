#include "tests/collectives/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

namespace tutti::testing {

namespace {

bool is_signed(DataType type) { return type != DataType::u8 && type != DataType::u32 && type != DataType::u64; }

// Converts through the library's own reduction of one source: a product with a factor, from f64's bits is not possible,
// so numbers are made by adding ones. Whole numbers up to 3 need at most three additions.
void write_number(DataType type, std::byte* at, int value) {
  switch (type) {
    case DataType::i8: {
      const auto v = static_cast<std::int8_t>(value);
      std::memcpy(at, &v, 1);
      return;
    }
    case DataType::u8: {
      const auto v = static_cast<std::uint8_t>(value);
      std::memcpy(at, &v, 1);
      return;
    }
    case DataType::i32: {
      const auto v = static_cast<std::int32_t>(value);
      std::memcpy(at, &v, 4);
      return;
    }
    case DataType::u32: {
      const auto v = static_cast<std::uint32_t>(value);
      std::memcpy(at, &v, 4);
      return;
    }
    case DataType::i64: {
      const auto v = static_cast<std::int64_t>(value);
      std::memcpy(at, &v, 8);
      return;
    }
    case DataType::u64: {
      const auto v = static_cast<std::uint64_t>(value);
      std::memcpy(at, &v, 8);
      return;
    }
    case DataType::f32: {
      const auto v = static_cast<float>(value);
      std::memcpy(at, &v, 4);
      return;
    }
    case DataType::f64: {
      const auto v = static_cast<double>(value);
      std::memcpy(at, &v, 8);
      return;
    }
    default: break;
  }
  // 16-bit and 8-bit floats of -3..3: sign, exponent and top mantissa bit written by hand.
  struct Format {
    int exponent_bits;
    int mantissa_bits;
  };
  const Format f = type == DataType::f16      ? Format{5, 10}
                   : type == DataType::bf16   ? Format{8, 7}
                   : type == DataType::f8e4m3 ? Format{4, 3}
                                              : Format{5, 2};
  const unsigned magnitude = static_cast<unsigned>(value < 0 ? -value : value);
  unsigned bits = 0;
  if (magnitude != 0) {
    const unsigned bias = (1u << (f.exponent_bits - 1)) - 1;
    const unsigned exponent = bias + (magnitude >= 2 ? 1 : 0);
    const unsigned mantissa = magnitude == 3 ? 1u << (f.mantissa_bits - 1) : 0;
    bits = exponent << f.mantissa_bits | mantissa;
  }
  if (value < 0) bits |= 1u << (f.exponent_bits + f.mantissa_bits);
  std::memcpy(at, &bits, size_of(type));  // little-endian
}

// Guard bytes behind every buffer show writes past the end.
constexpr std::size_t kGuard = 64;

class Bytes {
 public:
  Bytes(std::size_t size, bool registered) : size_(size), registered_(registered) {
    data_ = static_cast<std::byte*>(registered ? allocate(size + kGuard) : std::malloc(size + kGuard));
    std::memset(data_, 0xA5, size + kGuard);
  }
  ~Bytes() {
    if (registered_) {
      deallocate(data_);
    } else {
      std::free(data_);
    }
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::byte* data() { return data_; }
  bool guard_is_whole() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (data_[size_ + i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  std::size_t size_;
  bool registered_;
  std::byte* data_ = nullptr;
};

void fill(std::byte* at, DataType type, int rank, std::size_t begin, std::size_t count) {
  constexpr std::size_t kPeriod = 35;  // write_element's: 7 values, each 5 times
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i)
    write_element(type, at + i * size_of(type), rank, begin + i);
  for (std::size_t done = kPeriod; done < count;) {  // what is there already, once more
    const std::size_t more = std::min(done, count - done);
    std::memcpy(at + done * size_of(type), at, more * size_of(type));
    done += more;
  }
}

void expect_equal(const std::byte* got, const std::byte* wanted, std::size_t count, DataType type,
                  const std::string& where) {
  const std::size_t element = size_of(type);
  if (count == 0 || std::memcmp(got, wanted, count * element) == 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i * element, wanted + i * element, element) == 0) continue;
    std::string hex;
    for (std::size_t b = 0; b < element; ++b) {
      hex += fmt::format("{:02x}/{:02x} ", std::to_integer<int>(got[i * element + b]),
                         std::to_integer<int>(wanted[i * element + b]));
    }
    throw std::runtime_error(fmt::format("{}: element {} of {} is wrong (got/wanted {})", where, i, count, hex));
  }
}

bool has_blocks_in(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::scatter || c == Collective::all_to_all ||
         c == Collective::all_to_allv;
}
bool has_blocks_out(Collective c) {
  return c == Collective::all_gather || c == Collective::gather || c == Collective::all_to_all ||
         c == Collective::all_to_allv;
}

// How much of its block two ranks exchange in an all_to_allv: nothing, a half, or all. The same both ways, so that it
// may be in place.
std::size_t part_of_block(const Case& c, int rank, int peer) {
  return c.count * static_cast<std::size_t>((rank + peer) % 3) / 2;
}

void run_all_to_allv(Communicator& comm, const Case& c, const std::byte* send, std::byte* recv,
                     const CallOptions& options) {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;
  for (int r = 0; r < comm.size(); ++r) {
    counts.push_back(part_of_block(c, comm.rank(), r));
    offsets.push_back(static_cast<std::size_t>(r) * c.count);
  }
  comm.all_to_allv(send, counts.data(), offsets.data(), recv, counts.data(), offsets.data(), c.type, options);
}

// All ranks' inputs of [begin, begin + count), reduced by the scalar rule.
std::vector<std::byte> reduced(const Case& c, int ranks, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(c.type);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const void*> sources;
  std::vector<double> factors;
  for (int r = 0; r < ranks; ++r) {
    auto& input = inputs.emplace_back(count * element + 1);
    fill(input.data(), c.type, r, begin, count);
    factors.push_back(r % 2 + 1);
  }
  for (auto& input : inputs) sources.push_back(input.data());
  std::vector<std::byte> out(count * element + 1);
  void* const destinations[] = {out.data()};
  reduce::reduce({.type = c.type,
                  .op = c.op,
                  .divide_by = c.op == ReduceOp::avg ? static_cast<double>(ranks) : 0.0,
                  .factors = c.op == ReduceOp::premul_sum ? factors.data() : nullptr},
                 destinations, sources, count, false);
  return out;
}

}  // namespace

void write_element(DataType type, std::byte* at, int rank, std::size_t index) {
  const std::size_t mixed = (index * 7 + static_cast<std::size_t>(rank) * 3 + index / 5) % 7;
  const int value = static_cast<int>(mixed) - 3;
  write_number(type, at, is_signed(type) || value >= 0 ? value : -value);
}

std::string describe(const Case& c) {
  return fmt::format("{} {} {} x {} {} root {}{}{}", name_of(c.collective),
                     c.algorithm.empty() ? "(chosen)" : c.algorithm, c.count, name_of(c.type), name_of(c.op), c.root,
                     c.in_place ? " in place" : "", c.registered ? " registered" : " plain") +
         (c.lean ? " lean" : "") + (c.deterministic ? " deterministic" : "");
}

void check_case(Communicator& comm, const Case& c) {
  const int n = comm.size();
  const int rank = comm.rank();
  const std::size_t element = size_of(c.type);
  const auto blocks = static_cast<std::size_t>(n);
  const std::size_t in_count = c.count * (has_blocks_in(c.collective) ? blocks : 1);
  const std::size_t out_count = c.count * (has_blocks_out(c.collective) ? blocks : 1);
  const std::size_t own_block = static_cast<std::size_t>(rank) * c.count * element;
  const std::string where = fmt::format("rank {} of {}: {}", rank, n, describe(c));

  Bytes separate(in_count * element, c.registered);
  Bytes main(std::max(in_count, out_count) * element, c.registered);
  std::byte* send = separate.data();
  std::byte* recv = main.data();
  if (c.in_place) {
    send = main.data() + (c.collective == Collective::all_gather || c.collective == Collective::gather ? own_block : 0);
    recv = main.data() +
           (c.collective == Collective::reduce_scatter || c.collective == Collective::scatter ? own_block : 0);
  }
  fill(send, c.type, rank, 0, in_count);
  const bool reads = (c.collective != Collective::broadcast && c.collective != Collective::scatter) || rank == c.root;
  const bool writes = (c.collective != Collective::reduce && c.collective != Collective::gather) || rank == c.root;
  const std::vector<std::byte> before(main.data(), main.data() + std::max(in_count, out_count) * element);
  if (c.lean && !reads) send = nullptr;
  if (c.lean && !writes) recv = nullptr;
  const CallOptions options{
      .deterministic = c.deterministic, .factor = static_cast<double>(rank % 2 + 1), .algorithm = c.algorithm};

  switch (c.collective) {
    case Collective::all_reduce: comm.all_reduce(send, recv, c.count, c.type, c.op, options); break;
    case Collective::reduce_scatter: comm.reduce_scatter(send, recv, c.count, c.type, c.op, options); break;
    case Collective::all_gather: comm.all_gather(send, recv, c.count, c.type, options); break;
    case Collective::broadcast: comm.broadcast(send, recv, c.count, c.type, c.root, options); break;
    case Collective::reduce: comm.reduce(send, recv, c.count, c.type, c.op, c.root, options); break;
    case Collective::all_to_all: comm.all_to_all(send, recv, c.count, c.type, options); break;
    case Collective::all_to_allv: run_all_to_allv(comm, c, send, recv, options); break;
    case Collective::gather: comm.gather(send, recv, c.count, c.type, c.root, options); break;
    case Collective::scatter: comm.scatter(send, recv, c.count, c.type, c.root, options); break;
    case Collective::barrier: comm.barrier(); break;
    default: throw std::runtime_error("no such case");
  }

  std::vector<std::byte> wanted(out_count * element + 1);
  bool defined = true;
  switch (c.collective) {
    case Collective::all_reduce: wanted = reduced(c, n, 0, c.count); break;
    case Collective::reduce:
      defined = rank == c.root;
      wanted = reduced(c, n, 0, c.count);
      break;
    case Collective::reduce_scatter: wanted = reduced(c, n, static_cast<std::size_t>(rank) * c.count, c.count); break;
    case Collective::broadcast: fill(wanted.data(), c.type, c.root, 0, c.count); break;
    case Collective::scatter:
      fill(wanted.data(), c.type, c.root, static_cast<std::size_t>(rank) * c.count, c.count);
      break;
    case Collective::all_gather:
    case Collective::gather:
      defined = c.collective == Collective::all_gather || rank == c.root;
      for (int r = 0; r < n; ++r)
        fill(wanted.data() + static_cast<std::size_t>(r) * c.count * element, c.type, r, 0, c.count);
      break;
    case Collective::all_to_all:
      for (int r = 0; r < n; ++r) {
        fill(wanted.data() + static_cast<std::size_t>(r) * c.count * element, c.type, r,
             static_cast<std::size_t>(rank) * c.count, c.count);
      }
      break;
    case Collective::all_to_allv:
      std::copy_n(before.begin(), out_count * element, wanted.begin());
      for (int r = 0; r < n; ++r) {
        fill(wanted.data() + static_cast<std::size_t>(r) * c.count * element, c.type, r,
             static_cast<std::size_t>(rank) * c.count, part_of_block(c, rank, r));
      }
      break;
    default: return;
  }
  if (defined) expect_equal(recv, wanted.data(), out_count, c.type, where);
  if (!writes && !std::equal(before.begin(), before.end(), main.data())) {
    throw std::runtime_error(where + ": wrote to a buffer that only the root's call fills");
  }
  if (!main.guard_is_whole() || !separate.guard_is_whole()) throw std::runtime_error(where + ": wrote past a buffer");
  // The input of a call that is not in place belongs to the caller.
  if (!c.in_place && send != nullptr) {
    std::vector<std::byte> input(in_count * element + 1);
    fill(input.data(), c.type, rank, 0, in_count);
    expect_equal(send, input.data(), in_count, c.type, where + ", input changed");
  }
}

}  // namespace tutti::testing
