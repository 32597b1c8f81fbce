// Messages that came before they were wanted.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "collectives/executor/p2p/transfers.h"

namespace tutti::executor {

bool Transfers::keep(Incoming& in, const SlotHeader& header) {
  const std::size_t bytes = header.message_bytes;
  if (!has_room(bytes)) return false;
  Unexpected message{header.tag, header.type, header.message_count, bytes, nullptr};
  message.data.reset(new (std::nothrow) std::byte[std::max<std::size_t>(bytes, 1)]);
  if (message.data == nullptr) return false;
  in.arrival = {kNone, true, message.data.get(), bytes, 0};
  in.unexpected.push_back(std::move(message));
  kept_ += cost(bytes);
  return true;
}

bool Transfers::take_unexpected(int index, int peer) {
  Incoming& in = from(peer);
  const Transfer& t = at(index).transfer;
  const auto found = std::find_if(in.unexpected.begin(), in.unexpected.end(),
                                  [&](const Unexpected& message) { return message.tag == t.tag; });
  if (found == in.unexpected.end()) return false;
  if (!fits(found->count, found->type, t)) {
    failure_ = mismatch(peer, found->count, found->type, t);
    return true;
  }
  // The last one may still be on its way: then the rest goes where it belongs.
  const bool partial = in.arrival.unexpected && std::next(found) == in.unexpected.end();
  const std::size_t here = partial ? in.arrival.done : found->bytes;
  if (here > 0) std::memcpy(t.buffer, found->data.get(), here);
  kept_ -= cost(found->bytes);
  in.unexpected.erase(found);
  if (t.peer == kAnySource) turn_ = (peer + 1) % ranks_;
  if (partial) {
    in.arrival.unexpected = false;
    in.arrival.message = index;
    in.arrival.to = static_cast<std::byte*>(t.buffer);
    open_receiving(peer);
  } else {
    deliver(index, peer);
  }
  return true;
}

}  // namespace tutti::executor
