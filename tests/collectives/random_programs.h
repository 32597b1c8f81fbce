// Random programs: the same seed gives the same program on every rank, a sequence of calls of every kind on several
// communicators, with buffers that differ from rank to rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/must.h"

namespace tutti::testing {

class RandomProgram {
 public:
  /// `by_puts_alone`: ranks on other hosts are written to only, so some algorithms are refused, on every rank alike.
  RandomProgram(Communicator& world, unsigned seed, bool by_puts_alone = false)
      : world_(world),
        by_puts_alone_(by_puts_alone),
        program_(seed),
        own_(seed + 1 + static_cast<unsigned>(world.rank())) {
    children_.push_back(world.split(0, -world.rank()));
    children_.push_back(world.split(world.rank() % 2, 0));
  }

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      try {
        one_call();
      } catch (const std::exception& error) {
        throw std::runtime_error("call " + std::to_string(i) + " of the program: " + error.what());
      }
    }
  }

 private:
  std::size_t draw(std::size_t below) { return program_() % below; }

  void one_call() {
    const std::size_t where = draw(4);
    if (where == 3) {
      exchange();
      return;
    }
    Communicator& comm = where == 0 ? world_ : children_[where - 1];
    // Drawn whether it is needed or not, and never by what only this rank knows: the programs must stay alike.
    Case c;
    const auto& table = algorithms::table();
    const algorithms::Algorithm& algorithm = table[draw(table.size())];
    const bool by_name = draw(2) == 0;
    const std::size_t counts[] = {0, 1, 3, 64, 1000, 4097, 30'000};
    c.collective = algorithm.collective;
    c.algorithm = by_name ? algorithm.name : "";
    c.count = counts[draw(std::size(counts))];
    // Whole numbers whose sums every order gives exactly: not the narrow floats, nor products of many.
    const DataType types[] = {DataType::i8, DataType::u8, DataType::i32, DataType::u64, DataType::f32, DataType::f64};
    c.type = types[draw(std::size(types))];
    const ReduceOp ops[] = {ReduceOp::sum,  ReduceOp::min, ReduceOp::max, ReduceOp::premul_sum,
                            ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};
    const ReduceOp op = ops[draw(std::size(ops))];
    if (reduces(c.collective) && applies(op, c.type)) c.op = op;
    const int root = static_cast<int>(draw(997)) % comm.size();
    if (algorithms::serves(algorithm, {algorithm.collective, comm.size(), root, {}})) c.root = root;
    c.deterministic = draw(4) == 0 && algorithm.rank_order;
    c.registered = own_() % 2 == 0;
    c.in_place = own_() % 3 == 0;
    c.lean = own_() % 2 == 0;
    try {
      check_case(comm, c);
    } catch (const Error& error) {
      const bool refused = std::string(error.what()).find("was asked for, but it needs") != std::string::npos;
      if (!by_puts_alone_ || !by_name || !refused) throw;
    }
  }

  /// A ring of messages in both directions, of a drawn size.
  void exchange() {
    const std::size_t count = draw(3) == 0 ? draw(100'000) : draw(500);
    const int n = world_.size();
    const int next = (world_.rank() + 1) % n;
    const int previous = (world_.rank() + n - 1) % n;
    std::vector<std::int32_t> out(count, world_.rank()), forth(count, -1), back(count, -1);
    world_.group_start();
    world_.send(out.data(), count, DataType::i32, next);
    world_.recv(forth.data(), count, DataType::i32, previous);
    world_.send(out.data(), count, DataType::i32, previous);
    world_.recv(back.data(), count, DataType::i32, next);
    world_.group_end();
    for (std::size_t i = 0; i < count; ++i) MUST(forth[i] == previous && back[i] == next);
  }

  Communicator& world_;
  const bool by_puts_alone_;
  std::mt19937 program_;
  std::mt19937 own_;  // what may differ between ranks
  std::vector<Communicator> children_;
};

/// From TUTTI_TEST_SEED, to repeat a failure, or new.
inline unsigned program_seed() {
  const char* given = std::getenv("TUTTI_TEST_SEED");
  return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

}  // namespace tutti::testing
