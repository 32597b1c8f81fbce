// What comes from a peer by UCX: any bytes are read or refused, nothing beyond them is; and whatever numbers its
// messages have, those that are taken come out once each, in order.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "transport/ucx/am_message.h"

namespace {

using namespace tutti::ucx;

void read_all(std::string_view text) {
  auto reading = MessageReader::open(text);
  if (!reading.ok()) return;
  const char* const end = text.data() + text.size();
  Entry entry;
  const char* behind = nullptr;
  while (reading.value().next(entry, behind)) {
    const std::size_t bytes = entry.kind == Kind::put ? entry.bytes_or_count : 0;
    if (behind < text.data() || behind > end || bytes > static_cast<std::size_t>(end - behind)) std::abort();
  }
}

/// A byte for each step: a message with this number comes, whole or with a large put under way, or one that is under
/// way is complete.
void number_all(std::string_view steps) {
  ReorderQueue queue;
  std::vector<std::uint64_t> under_way;
  std::uint64_t next = 0;
  const auto apply = [&](const ReorderQueue::Signal& signal) {
    if (signal.count != next++) std::abort();
  };
  for (const char letter : steps) {
    const auto step = static_cast<unsigned char>(letter);
    const std::uint64_t number = step & 63;
    const bool whole = (step & 64) != 0;
    if ((step & 128) != 0) {
      if (under_way.empty()) continue;
      queue.complete(under_way.back());
      under_way.pop_back();
    } else if (!queue.expects(number)) {
      continue;
    } else if (whole && queue.is_next(number)) {
      apply({0, 0, number, 0});
      queue.passed();
    } else {
      queue.wait(number, {{0, 0, number, 0}}, whole);
      if (!whole) under_way.push_back(number);
    }
    queue.drain(apply);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_all(text);
  number_all(text);
  return 0;
}
