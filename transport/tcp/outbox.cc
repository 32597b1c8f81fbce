#include "transport/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace tutti::tcp {

namespace {

// Of one call of the kernel: more would keep this side from reading for too long where both send.
constexpr std::size_t kMostBytes = std::size_t{256} << 10;
constexpr std::size_t kMostPieces = 32;

}  // namespace

void Outbox::append(const void* from, std::size_t bytes) {
  if (parts_.empty() || parts_.back().from != nullptr) parts_.emplace_back();
  const auto* begin = static_cast<const std::byte*>(from);
  text_.insert(text_.end(), begin, begin + bytes);
  parts_.back().text += bytes;
}

void Outbox::signal(std::uint32_t region, std::size_t at, std::uint64_t count, std::uint64_t tag) {
  const Frame frame{Kind::signal, region, at, count, tag};
  append(&frame, sizeof frame);
}

void Outbox::put(std::uint32_t region, std::size_t at, const void* from, std::size_t bytes) {
  const Frame frame{Kind::put, region, at, bytes, 0};
  append(&frame, sizeof frame);
  append(from, bytes);
}

void Outbox::large_put(std::uint32_t region, std::size_t at, const void* from, std::size_t bytes, Source& source) {
  const Frame frame{Kind::put, region, at, bytes, 0};
  append(&frame, sizeof frame);
  Part& part = parts_.back();
  part.from = static_cast<const std::byte*>(from);
  part.bytes = bytes;
  part.source = &source;
}

std::ptrdiff_t Outbox::send(int fd, std::vector<Source*>& completed) {
  std::array<iovec, kMostPieces> pieces;
  std::size_t count = 0, bytes = 0, text = text_begin_;
  const auto add = [&](const std::byte* from, std::size_t all) {
    const std::size_t some = std::min(all, kMostBytes - bytes);
    if (some == 0) return;
    pieces[count++] = {const_cast<std::byte*>(from), some};
    bytes += some;
  };
  for (auto part = parts_.begin(); part != parts_.end() && count + 2 <= kMostPieces && bytes < kMostBytes; ++part) {
    add(text_.data() + text, part->text);
    add(part->from, part->bytes);
    text += part->text;
  }
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  // The kernel takes a tenth of a microsecond less for what is in one piece.
  const ssize_t taken =
      count == 1 ? ::send(fd, pieces[0].iov_base, pieces[0].iov_len, kFlags) : ::sendmsg(fd, &message, kFlags);
  if (taken > 0) sent(static_cast<std::size_t>(taken), completed);
  return taken;
}

void Outbox::sent(std::size_t bytes, std::vector<Source*>& completed) {
  auto part = parts_.begin();
  for (; part != parts_.end(); ++part) {
    const std::size_t text = std::min(bytes, part->text);
    part->text -= text;
    text_begin_ += text;
    bytes -= text;
    const std::size_t some = part->text == 0 ? std::min(bytes, part->bytes) : 0;
    part->from += some;
    part->bytes -= some;
    bytes -= some;
    if (part->text + part->bytes > 0) break;
    if (part->source != nullptr) completed.push_back(part->source);
  }
  parts_.erase(parts_.begin(), part);
  // What has been sent is given up when it is all, or most of it.
  if (2 * text_begin_ >= text_.size()) {
    text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(text_begin_));
    text_begin_ = 0;
  }
}

bool Outbox::copy(const Source& source, std::vector<Source*>& completed) {
  const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.source == &source; });
  if (part == parts_.end()) return true;
  part->copied.reset(new (std::nothrow) std::byte[part->bytes]);
  if (part->copied == nullptr) return false;
  std::memcpy(part->copied.get(), part->from, part->bytes);
  part->from = part->copied.get();
  completed.push_back(std::exchange(part->source, nullptr));
  return true;
}

void Outbox::clear(std::vector<Source*>& completed) {
  for (const Part& part : parts_) {
    if (part.source != nullptr) completed.push_back(part.source);
  }
  parts_.clear();
  text_.clear();
  text_begin_ = 0;
}

}  // namespace tutti::tcp
