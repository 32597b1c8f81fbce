// Which ranks of several hosts make a grid, and that the fragments of a call on it, played on host memory with
// collectives of a few lines, give the call's result and keep to their slots.
#include "collectives/device/multi_host/hierarchical_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "collectives/calls/validate.h"
#include "collectives/plan/layout.h"

namespace tutti::grid_call_test {
namespace {

using Value = std::uint32_t;
using Hosts = std::vector<int>;

std::optional<HostLayout> grid_of(const Hosts& hosts, int rank = 0, std::string* said = nullptr) {
  const char* why_not = "";
  const auto grid = HostLayout::of(hosts, rank, &why_not);
  if (said != nullptr) *said = why_not;
  return grid;
}

TEST(HostLayout, RowsAndColumns) {
  const auto grid = grid_of({4, 4, 4, 2, 2, 2}, 5);
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->hosts(), 2);
  EXPECT_EQ(grid->local_size(), 3);
  EXPECT_EQ(grid->host(), 1);
  EXPECT_EQ(grid->local_rank(), 2);
  EXPECT_EQ(grid->intra_host(), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(grid->cross_host(), (std::vector<int>{2, 5}));
  EXPECT_EQ(grid->step(), 1);
  const auto by_turns = grid_of({0, 1, 2, 0, 1, 2}, 4);
  ASSERT_TRUE(by_turns);
  EXPECT_EQ(by_turns->intra_host(), (std::vector<int>{1, 4}));
  EXPECT_EQ(by_turns->cross_host(), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(by_turns->step(), 3);
}

TEST(HostLayout, WhatIsNone) {
  std::string why;
  const std::pair<Hosts, const char*> cases[] = {{{0, 0, 0}, "there is one host"},
                                                 {{0, 1, 2}, "each host has one rank"},
                                                 {{0, 0, 1}, "hosts have different numbers of ranks"},
                                                 {{0, 1, 1, 0}, "the hosts' ranks are not in one order"}};
  for (const auto& [hosts, expected] : cases) {
    EXPECT_FALSE(grid_of(hosts, 0, &why));
    EXPECT_EQ(why, expected);
  }
}

Value load(const void* at, std::size_t index) {
  Value value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(at) + index * sizeof(Value), sizeof(Value));
  return value;
}
void store(void* at, std::size_t index, Value value) {
  std::memcpy(static_cast<std::byte*>(at) + index * sizeof(Value), &value, sizeof(Value));
}

/// A collective among ranks whose calls these are, of sums or of products by a factor. `stride`: between blocks.
void play(const std::vector<Call>& calls, std::size_t stride) {
  const Call& first = calls.front();
  const std::size_t n = calls.size();
  const plan::Placements placements = plan::placements_of(first.collective);
  const auto at = [&](plan::Placement placement, std::size_t block, std::size_t i) {
    return placement == plan::Placement::blocks ? block * stride + i : i;
  };
  const bool adds = reduces(first.collective);
  const bool to_one = placements.output == plan::Placement::own;
  const bool from_all = placements.input == plan::Placement::own;
  std::vector<std::vector<Value>> result(n);  // of each rank: blocks behind each other
  for (std::size_t r = 0; r < n; ++r) {
    const std::size_t blocks = placements.output == plan::Placement::blocks ? n : 1;
    for (std::size_t b = 0; b < blocks; ++b) {
      for (std::size_t i = 0; i < first.count; ++i) {
        Value value = 0;
        for (std::size_t from = 0; from < n; ++from) {
          const bool gives = adds || (from_all ? from == b : from == static_cast<std::size_t>(first.root));
          if (!gives) continue;
          const Value factor = first.op == ReduceOp::premul_sum ? static_cast<Value>(calls[from].factor) : 1;
          value += factor * load(calls[from].send, at(placements.input, to_one ? r : b, i));
        }
        result[r].push_back(value);
      }
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    if (!writes_recv(calls[r], static_cast<int>(r))) continue;
    for (std::size_t k = 0; k < result[r].size(); ++k) {
      store(calls[r].recv, at(placements.output, k / first.count, k % first.count), result[r][k]);
    }
  }
}

struct Memory {
  std::vector<Value> send, recv, share, input, output;
};

void play_call(const Hosts& hosts, const Call& model, bool in_place, std::size_t slot_bytes) {
  const std::size_t n = hosts.size();
  const plan::Placements placements = plan::placements_of(model.collective);
  const auto elements = [&](plan::Placement p) { return model.count * (p == plan::Placement::blocks ? n : 1); };
  std::vector<Memory> memory(n);
  std::vector<Call> whole(n, model);
  std::vector<Call> reference(n, model);
  std::vector<std::vector<Value>> expected(n), inputs(n);
  std::vector<HostLayout> grids;
  for (std::size_t r = 0; r < n; ++r) {
    Memory& m = memory[r];
    m.send.resize(elements(placements.input));
    m.recv.assign(elements(placements.output), 77);
    for (std::size_t i = 0; i < m.send.size(); ++i) m.send[i] = static_cast<Value>(1000 * r + i + 1);
    inputs[r] = m.send;
    expected[r] = m.recv;
    m.share.resize(slot_bytes / sizeof(Value));
    m.input.resize(m.share.size());
    m.output.resize(m.share.size());
    whole[r].factor = reference[r].factor = static_cast<double>(r + 2);
    reference[r].send = inputs[r].data();
    reference[r].recv = expected[r].data();
    whole[r].send = m.send.data();
    whole[r].recv = m.recv.data();
    if (in_place && placements.output == plan::Placement::blocks) {
      std::copy(m.send.begin(), m.send.end(), m.recv.begin() + static_cast<std::ptrdiff_t>(r * model.count));
      whole[r].send = m.recv.data() + r * model.count;
    } else if (in_place) {
      whole[r].recv = m.send.data() + (placements.input == plan::Placement::blocks ? r * model.count : 0);
    }
    grids.push_back(*grid_of(hosts, static_cast<int>(r)));
  }
  play(reference, model.count);
  std::vector<HierarchicalCall> calls;
  calls.reserve(n);
  for (std::size_t r = 0; r < n; ++r) {
    calls.emplace_back(whole[r], grids[r], reinterpret_cast<std::byte*>(memory[r].share.data()), slot_bytes);
    ASSERT_EQ(calls[r].fragments(), calls[0].fragments());
  }
  for (std::size_t fragment = 0; fragment < calls[0].fragments(); ++fragment) {
    std::vector<HierarchicalCall::Fragment> now;
    for (std::size_t r = 0; r < n; ++r) {
      now.push_back(calls[r].fragment(fragment, reinterpret_cast<std::byte*>(memory[r].input.data()),
                                      reinterpret_cast<std::byte*>(memory[r].output.data())));
      for (const auto* pieces : {&now[r].copies.in, &now[r].copies.out}) {
        std::size_t bytes = 0;
        for (const HostStaging::Piece& piece : *pieces) bytes += piece.bytes;
        ASSERT_LE(bytes, slot_bytes);
      }
    }
    const auto play_rows = [&](auto kernels) {
      for (int host = 0; host < grids[0].hosts(); ++host) {
        const auto& first = kernels(now[static_cast<std::size_t>(grids[0].rank(host, 0))]);
        for (std::size_t k = 0; k < first.size(); ++k) {
          std::vector<Call> row;
          for (int place = 0; place < grids[0].local_size(); ++place) {
            row.push_back(kernels(now[static_cast<std::size_t>(grids[0].rank(host, place))])[k].call);
          }
          play(row, first[k].stride != 0 ? first[k].stride : row[0].count);
        }
      }
    };
    play_rows([](const HierarchicalCall::Fragment& t) -> const auto& { return t.before; });
    for (const HierarchicalCall::Fragment& t : now) {
      for (const HostStaging::Piece& piece : t.copies.in) std::memcpy(piece.slot, piece.device, piece.bytes);
    }
    std::vector<std::vector<int>> groups;
    for (int place = 0; now[0].cross_host && place < grids[0].local_size(); ++place) {
      groups.push_back(grids[static_cast<std::size_t>(grids[0].rank(0, place))].cross_host());
    }
    if (!now[0].cross_host) {
      groups.emplace_back();
      for (std::size_t r = 0; r < n; ++r) groups[0].push_back(static_cast<int>(r));
    }
    for (const std::vector<int>& group : groups) {
      std::vector<Call> on_host;
      for (const int r : group) on_host.push_back(now[static_cast<std::size_t>(r)].on_host);
      play(on_host, on_host[0].count);
    }
    for (const HierarchicalCall::Fragment& t : now) {
      for (const HostStaging::Piece& piece : t.copies.out) std::memcpy(piece.device, piece.slot, piece.bytes);
    }
    play_rows([](const HierarchicalCall::Fragment& t) -> const auto& { return t.after; });
  }
  for (std::size_t r = 0; r < n; ++r) {
    if (!writes_recv(model, static_cast<int>(r))) continue;
    for (std::size_t i = 0; i < expected[r].size(); ++i) {
      ASSERT_EQ(load(whole[r].recv, i), expected[r][i]) << "rank " << r << ", element " << i;
    }
    if (in_place) continue;
    ASSERT_EQ(memory[r].send, inputs[r]) << "rank " << r;
  }
}

TEST(HierarchicalCall, TurnsGiveTheResult) {
  constexpr Collective kServed[] = {Collective::all_reduce, Collective::reduce, Collective::broadcast,
                                    Collective::reduce_scatter, Collective::all_gather};
  const Hosts placements[] = {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 2, 0, 1, 2}};
  for (const Collective collective : kServed) {
    EXPECT_TRUE(HierarchicalCall::serves(collective));
    for (const Hosts& hosts : placements) {
      const auto n = static_cast<int>(hosts.size());
      for (const std::size_t count : {6u, 100u, 331u, 1000u}) {
        for (const bool in_place : {false, true}) {
          for (const int root : {0, n - 1}) {
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::premul_sum}) {
              SCOPED_TRACE(std::string(name_of(collective)) + " of " + std::to_string(count) + " by " +
                           std::to_string(n) + " ranks, root " + std::to_string(root) + ", " + name_of(op) +
                           (in_place ? ", in place" : ""));
              Call call;
              call.collective = collective;
              call.count = count;
              call.type = DataType::u32;
              call.op = op;
              call.root = root;
              if (!has_root(collective) && root != 0) continue;
              if (!reduces(collective) && op != ReduceOp::sum) continue;
              play_call(hosts, call, in_place, 512);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::grid_call_test
