// The job's secret and the proofs that a peer knows it. HMAC-SHA512-256 (libsodium's crypto_auth) over a purpose,
// both sides' nonces and what is claimed; a proof of one purpose is worthless for another. Pure, but for random().
#pragma once

#include <array>
#include <string_view>

#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {

struct Secret {
  std::array<unsigned char, 32> bytes{};
  static Secret random();
  /// Hashes the text (BLAKE2b); equal texts give equal secrets. The secret is as strong as the text is hard to guess.
  static Secret from_text(std::string_view text);
  friend bool operator==(const Secret&, const Secret&) = default;
};

/// The nonces that the proofs of one connection are bound to.
struct Handshake {
  Nonce server{};
  Nonce client{};
};

Proof prove(const Secret& secret, const Handshake& handshake, const JoinRequest& join_request);
Proof prove(const Secret& secret, const Handshake& handshake, const Welcome& welcome);
Proof prove(const Secret& secret, const Handshake& handshake, const Refusal& refusal);

/// Returns true if the message's own proof holds. Takes constant time.
template <class Message>
bool is_proven(const Secret& secret, const Handshake& handshake, const Message& message);

}  // namespace tutti::bootstrap
