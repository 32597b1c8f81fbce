#include "collectives/calls/call_identity.h"

#include <cstddef>
#include <cstdint>

#include "collectives/job/stable_hash.h"

namespace tutti {

executor::CallIdentity identity_of(const Call& call, const Options& options) {
  executor::CallIdentity identity;
  identity.words = words_of(call, options);
  identity.count = call.count;
  const std::string_view request = requested_algorithm(call, options);
  identity.algorithm_request = request.empty() ? 0 : stable_hash(request);
  return identity;
}

executor::CallIdentity identity_on_device(const Call& call, const Options& options, std::size_t fragment_elements) {
  executor::CallIdentity identity = identity_of(call, options);
  identity.words.flags |= transport::kOnDevice;
  identity.algorithm_request ^= fragment_elements;
  return identity;
}

bool is_in_place(const Call& call, int rank, std::size_t stride) {
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  const std::size_t block = static_cast<std::size_t>(rank) * stride * size_of(call.type);
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather: return recv != nullptr && send == recv + block;
    case Collective::reduce_scatter:
    case Collective::scatter: return send != nullptr && recv == send + block;
    default: return send == recv;
  }
}

}  // namespace tutti
