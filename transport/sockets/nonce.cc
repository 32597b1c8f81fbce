#include "transport/sockets/nonce.h"

#include <sodium.h>

#include "base/check.h"

namespace tutti::sockets {

Nonce random_nonce() {
  static const bool ready = sodium_init() >= 0;
  TUTTI_CHECK(ready);
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace tutti::sockets
