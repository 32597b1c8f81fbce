#include "transport/bootstrap/secret.h"

#include <sodium.h>

#include <string>

#include "base/check.h"

namespace tutti::bootstrap {
namespace {

static_assert(crypto_auth_BYTES == sizeof(Proof) && crypto_auth_KEYBYTES == sizeof(Secret::bytes));

void need_sodium() {
  static const bool ready = sodium_init() >= 0;
  TUTTI_CHECK(ready);
}

Proof sign(const Secret& secret, std::string_view purpose, const Handshake& handshake, std::string_view claim) {
  need_sodium();
  std::string text(purpose);
  text += '\0';
  text.append(reinterpret_cast<const char*>(handshake.server.data()), handshake.server.size());
  text.append(reinterpret_cast<const char*>(handshake.client.data()), handshake.client.size());
  text += claim;
  Proof proof;
  crypto_auth(proof.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), secret.bytes.data());
  return proof;
}

/// The message without its proof.
template <class Message>
std::string claim_of(const Message& message) {
  Message copy = message;
  copy.proof = {};
  return encode(copy);
}

}  // namespace

Secret Secret::random() {
  need_sodium();
  Secret secret;
  randombytes_buf(secret.bytes.data(), secret.bytes.size());
  return secret;
}

Secret Secret::from_text(std::string_view text) {
  need_sodium();
  constexpr std::string_view kPurpose = "tutti job secret";
  Secret secret;
  crypto_generichash(secret.bytes.data(), secret.bytes.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size());
  return secret;
}

Proof prove(const Secret& secret, const Handshake& handshake, const JoinRequest& join_request) {
  return sign(secret, "tutti join request", handshake, claim_of(join_request));
}

Proof prove(const Secret& secret, const Handshake& handshake, const Welcome& welcome) {
  return sign(secret, "tutti welcome", handshake, claim_of(welcome));
}

Proof prove(const Secret& secret, const Handshake& handshake, const Refusal& refusal) {
  return sign(secret, "tutti refusal", handshake, claim_of(refusal));
}

template <class Message>
bool is_proven(const Secret& secret, const Handshake& handshake, const Message& message) {
  const Proof expected = prove(secret, handshake, message);
  return sodium_memcmp(expected.data(), message.proof.data(), expected.size()) == 0;
}

template bool is_proven<JoinRequest>(const Secret&, const Handshake&, const JoinRequest&);
template bool is_proven<Welcome>(const Secret&, const Handshake&, const Welcome&);
template bool is_proven<Refusal>(const Secret&, const Handshake&, const Refusal&);

}  // namespace tutti::bootstrap
