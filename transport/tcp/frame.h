// What goes over a connection. First a Hello of who made it, answered by one byte; then frames, both ways. Words are in
// the order of the machine: ranks of different kinds of machines do not meet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/bootstrap/message.h"

namespace tutti::tcp {

using sockets::Nonce;

struct Hello {
  static constexpr std::array<char, 8> kMagic{'t', 'u', 't', 't', 'i', 't', 'c', '1'};
  std::array<char, 8> magic = kMagic;
  std::uint32_t from = 0;  // rank
  std::uint32_t to = 0;
  Nonce of_sender{};  // both are in the addresses that the ranks have exchanged
  Nonce of_receiver{};
};

/// The rank that says it to `own`; -1: an unauthenticated peer does. `nonce_of(rank)`: null where that is not linked.
template <class NonceOf>
int sender_of(const Hello& hello, int own, const Nonce& own_nonce, int ranks, NonceOf&& nonce_of) {
  if (hello.magic != Hello::kMagic || hello.from >= static_cast<std::uint32_t>(ranks) ||
      hello.to != static_cast<std::uint32_t>(own) || hello.of_receiver != own_nonce) {
    return -1;
  }
  const Nonce* sender = nonce_of(static_cast<int>(hello.from));
  return sender != nullptr && hello.of_sender == *sender ? static_cast<int>(hello.from) : -1;
}

enum class Answer : char {
  welcome = 'w',
  other = 'o',  // the receiver's own connection to the sender stays, and this one ends
};

enum class Kind : std::uint32_t { put = 0x50555431, signal = 0x53494731 };  // no other word begins a frame

struct Frame {
  Kind kind = Kind::put;
  std::uint32_t region = 0;          // of the receiver's exposed memory
  std::uint64_t at = 0;              // in it
  std::uint64_t bytes_or_count = 0;  // put: so many bytes follow. signal: its count
  std::uint64_t tag = 0;
};
static_assert(sizeof(Frame) == 32);

}  // namespace tutti::tcp
