// What comes by a TCP connection: a peer is admitted only if it knows the keys that the ranks have exchanged; and
// whatever frames a rank sends, in whatever pieces, nothing is written outside of what is exposed.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "transport/tcp/frame.h"
#include "transport/tcp/inbox.h"

namespace {

using namespace tutti::tcp;

constexpr int kRanks = 3, kOwn = 1;  // rank 2 is on this host, and not linked

Nonce nonce_of(int rank) {
  Nonce nonce{};
  nonce.fill(static_cast<unsigned char>(rank + 1));
  return nonce;
}

void greet(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < sizeof(Hello)) return;
  Hello hello;
  std::memcpy(&hello, bytes.data(), sizeof hello);
  const Nonce linked = nonce_of(0);
  const int sender =
      sender_of(hello, kOwn, nonce_of(kOwn), kRanks, [&](int rank) { return rank == 0 ? &linked : nullptr; });
  const bool knows = hello.of_sender == linked && hello.of_receiver == nonce_of(kOwn);
  if (sender != -1 && (sender != 0 || !knows)) std::abort();
}

/// The first byte says how large the pieces are.
void receive(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kExposed = 256, kAround = 64;
  constexpr auto kFree = std::byte{0x55};
  alignas(64) std::byte memory[kAround + kExposed + kAround];
  std::fill(std::begin(memory), std::end(memory), kFree);
  ExposedMemory exposed;
  (void)exposed.add(memory + kAround, kExposed);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  Inbox inbox;
  Redirects redirects;
  const std::size_t piece = bytes.empty() ? 1 : 1 + bytes[0];
  bool makes_sense = true;
  while (makes_sense && !bytes.empty()) {
    const auto now = bytes.first(std::min(piece, bytes.size()));
    if (::write(ends[0], now.data(), now.size()) != static_cast<ssize_t>(now.size())) std::abort();
    bytes = bytes.subspan(now.size());
    for (bool come = true; makes_sense && come;) {
      const auto moved = inbox.receive(ends[1], exposed, redirects);
      makes_sense = moved.ok();
      come = makes_sense && moved.value();
    }
  }
  ::close(ends[0]);
  ::close(ends[1]);
  const auto is_free = [](std::byte b) { return b == kFree; };
  if (!std::all_of(memory, memory + kAround, is_free)) std::abort();
  if (!std::all_of(memory + kAround + kExposed, std::end(memory), is_free)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  greet({data, size});
  receive({data, size});
  return 0;
}
