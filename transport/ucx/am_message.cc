#include "transport/ucx/am_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tutti::ucx {

void AmMessage::add(const Entry& entry) { text_.append(reinterpret_cast<const char*>(&entry), sizeof entry); }

void AmMessage::put(std::uint32_t region, std::uint64_t at, const void* from, std::size_t bytes) {
  add({Kind::put, region, at, bytes, 0});
  text_.append(static_cast<const char*>(from), bytes);
  text_.resize(text_.size() + rounded(bytes) - bytes);
}

void AmMessage::large_put(std::uint32_t region, std::uint64_t at, std::size_t bytes) {
  add({Kind::large_put, region, at, bytes, 0});
}

void AmMessage::signal(std::uint32_t region, std::uint64_t at, std::uint64_t count, std::uint64_t tag) {
  add({Kind::signal, region, at, count, tag});
}

void AmMessage::set_head(int rank, int lane, std::uint64_t number, std::uint64_t pass) {
  const Head head{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(lane), number, pass};
  std::memcpy(text_.data(), &head, sizeof head);
}

Result<MessageReader> MessageReader::open(std::string_view text) {
  if (text.size() < sizeof(Head)) {
    return Status(Code::system, fmt::format("a message of {} bytes is too short", text.size()));
  }
  MessageReader reading;
  std::memcpy(&reading.head_, text.data(), sizeof(Head));
  reading.rest_ = text.substr(sizeof(Head));
  return reading;
}

bool MessageReader::next(Entry& entry, const char*& bytes) {
  if (rest_.empty()) return false;
  std::size_t behind = 0;
  if (rest_.size() >= sizeof(Entry)) {
    std::memcpy(&entry, rest_.data(), sizeof(Entry));
    bytes = rest_.data() + sizeof(Entry);
    if (entry.kind == Kind::put) behind = entry.bytes_or_count;
  }
  const std::size_t there = rest_.size() - std::min(rest_.size(), sizeof(Entry));
  if (rest_.size() < sizeof(Entry) || entry.kind > Kind::signal || behind > there || (behind + 7) / 8 * 8 > there) {
    status_ = Status(Code::system, fmt::format("a message is cut off {} bytes before its end", rest_.size()));
    return false;
  }
  rest_.remove_prefix(sizeof(Entry) + (behind + 7) / 8 * 8);
  return true;
}

void ReorderQueue::wait(std::uint64_t number, std::vector<Signal> signals, bool complete) {
  waiting_.emplace(number, Waiting{std::move(signals), complete});
}

void ReorderQueue::complete(std::uint64_t number) {
  const auto found = waiting_.find(number);
  TUTTI_CHECK(found != waiting_.end());
  found->second.complete = true;
}

void ReorderQueue::drain(const std::function<void(const Signal&)>& apply) {
  while (!waiting_.empty() && waiting_.begin()->first == next_ && waiting_.begin()->second.complete) {
    for (const Signal& signal : waiting_.begin()->second.signals) apply(signal);
    waiting_.erase(waiting_.begin());
    ++next_;
  }
}

}  // namespace tutti::ucx
