// What ranks do to try sends, receives and all_to_allv: any order in a group, to oneself, many per pair, of any size,
// with memory of any kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/must.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

/// Elements that say where they come from.
inline std::int32_t element(int from, int to, int message, std::size_t index) {
  return static_cast<std::int32_t>(static_cast<std::size_t>(from * 1000 + to * 100 + message * 7) + index * 3);
}

struct Message {
  std::vector<std::int32_t> plain;
  Buffer<std::int32_t> registered;
  std::int32_t* data = nullptr;
  std::size_t count = 0;

  Message(std::size_t size, bool in_arena) : count(size) {
    if (in_arena) registered = Buffer<std::int32_t>(size);
    if (!in_arena) plain.resize(size);
    data = in_arena ? registered.data() : plain.data();
  }
  Message(Message&&) = default;
};

// Empty, in one slot, just below and above what goes by place, in several slots, and large enough to stream.
inline constexpr std::size_t kCounts[] = {0, 1, 2047, 2048, 5000, 40'000, 300'001};

inline Message outgoing(int from, int to, int message, bool in_arena) {
  Message m(kCounts[static_cast<std::size_t>(message + from + to) % std::size(kCounts)], in_arena);
  for (std::size_t i = 0; i < m.count; ++i) m.data[i] = element(from, to, message, i);
  return m;
}

/// Every rank sends every rank (itself too) `messages` messages in one group; sends and receives in different orders.
inline void all_pairs(Communicator& comm, int messages) {
  const int n = comm.size();
  const int rank = comm.rank();
  std::vector<Message> out, in;
  for (int peer = 0; peer < n; ++peer) {
    for (int m = 0; m < messages; ++m) {
      out.push_back(outgoing(rank, peer, m, (m + rank) % 2 == 0));
      in.emplace_back(kCounts[static_cast<std::size_t>(m + peer + rank) % std::size(kCounts)], (m + rank) % 3 == 0);
    }
  }
  comm.group_start();
  for (int step = 0; step < n; ++step) {
    const int to = rank % 2 == 0 ? step : n - 1 - step;
    const int from = (rank + step) % n;
    if (rank % 3 == 0) {
      for (int m = 0; m < messages; ++m) {
        Message& message = in[static_cast<std::size_t>(from * messages + m)];
        comm.recv(message.data, message.count, DataType::i32, from);
      }
    }
    for (int m = 0; m < messages; ++m) {
      Message& message = out[static_cast<std::size_t>(to * messages + m)];
      comm.send(message.data, message.count, DataType::i32, to);
    }
    if (rank % 3 != 0) {
      for (int m = 0; m < messages; ++m) {
        Message& message = in[static_cast<std::size_t>(from * messages + m)];
        comm.recv(message.data, message.count, DataType::i32, from);
      }
    }
  }
  comm.group_end();
  for (int peer = 0; peer < n; ++peer) {
    for (int m = 0; m < messages; ++m) {
      const Message& message = in[static_cast<std::size_t>(peer * messages + m)];
      for (std::size_t i = 0; i < message.count; ++i) {
        if (message.data[i] == element(peer, rank, m, i)) continue;
        throw std::runtime_error("message " + std::to_string(m) + " of " + std::to_string(messages) + " from rank " +
                                 std::to_string(peer) + " to " + std::to_string(rank) + ": element " +
                                 std::to_string(i) + " of " + std::to_string(message.count) + " is " +
                                 std::to_string(message.data[i]));
      }
    }
  }
}

/// Rank i gives rank j (i * 3 + j * 5) % 7 * scale elements, from gaps between them, to gaps.
inline void unequal_all_to_all(Communicator& comm, std::size_t scale, const char* algorithm) {
  const auto n = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto share = [&](std::size_t i, std::size_t j) { return (i * 3 + j * 5) % 7 * scale; };
  std::vector<std::size_t> send_counts(n), send_offsets(n), recv_counts(n), recv_offsets(n);
  std::size_t sent = 3, received = 2;
  for (std::size_t r = n; r-- > 0;) {  // the last rank's part first: offsets need not rise
    send_counts[r] = share(rank, r);
    send_offsets[r] = sent;
    sent += send_counts[r] + 3;
    recv_counts[r] = share(r, rank);
    recv_offsets[r] = received;
    received += recv_counts[r] + 2;
  }
  std::vector<std::int32_t> out(sent, -5), in(received, -9);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < send_counts[r]; ++i) {
      out[send_offsets[r] + i] = element(comm.rank(), static_cast<int>(r), 0, i);
    }
  }
  comm.all_to_allv(out.data(), send_counts.data(), send_offsets.data(), in.data(), recv_counts.data(),
                   recv_offsets.data(), DataType::i32, {.algorithm = algorithm});
  std::vector<std::int32_t> wanted(received, -9);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < recv_counts[r]; ++i) {
      wanted[recv_offsets[r] + i] = element(static_cast<int>(r), comm.rank(), 0, i);
    }
  }
  MUST(in == wanted);
}

/// All of it, with collectives in between.
inline void exchange_everything(Communicator& comm) {
  all_pairs(comm, 1);
  all_pairs(comm, 9);  // more than a mailbox has slots
  for (const std::size_t scale : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{30'000}}) {
    for (const char* algorithm : {"", "direct", "pairwise", "linear"}) unequal_all_to_all(comm, scale, algorithm);
    std::int32_t one = 1;  // collectives between the exchanges
    comm.all_reduce(&one, &one, 1, DataType::i32);
    MUST(one == comm.size());
  }
}

}  // namespace tutti::testing
