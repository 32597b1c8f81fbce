#include "transport/tcp/inbox.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace tutti::tcp {

namespace {

constexpr std::size_t kSignalBytes = 16;

Status nonsense(std::string what) { return Status(Code::system, "it has sent " + what); }

}  // namespace

std::uint32_t ExposedMemory::add(std::byte* base, std::size_t bytes) {
  auto free = std::find_if(regions_.begin(), regions_.end(), [](const Region& one) { return one.base == nullptr; });
  if (free == regions_.end()) free = regions_.insert(free, Region());
  *free = {base, bytes};
  return static_cast<std::uint32_t>(free - regions_.begin());
}

void ExposedMemory::remove(const std::byte* base) {
  for (Region& one : regions_) {
    if (one.base == base) one = {};
  }
}

std::byte* ExposedMemory::place(std::uint32_t region, std::uint64_t at, std::uint64_t bytes) const {
  if (region >= regions_.size()) return nullptr;
  const Region& there = regions_[region];
  if (there.base == nullptr || at > there.bytes || bytes > there.bytes - at) return nullptr;
  return there.base + at;
}

Result<bool> Inbox::receive(int fd, const ExposedMemory& memory) {
  // One call for the rest of a put and what is behind it: usually its signal.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const iovec both[] = {{to_, left_}, {buffer_.data() + end_, kBuffer - end_}};
  const ssize_t came = left_ > 0 ? ::readv(fd, both, 2) : ::read(fd, both[1].iov_base, both[1].iov_len);
  if (came < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return Status(Code::peer_died, std::strerror(errno));
  }
  if (came == 0) return Status(Code::peer_died, "the peer has closed it");
  const std::size_t of_put = std::min(static_cast<std::size_t>(came), left_);
  to_ += of_put;
  left_ -= of_put;
  end_ += static_cast<std::size_t>(came) - of_put;
  TUTTI_TRY(unpack(memory));
  return true;
}

Status Inbox::unpack(const ExposedMemory& memory) {
  while (left_ == 0 && end_ - begin_ >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, buffer_.data() + begin_, sizeof frame);
    begin_ += sizeof frame;
    const bool is_signal = frame.kind == Kind::signal;
    if (!is_signal && frame.kind != Kind::put) return nonsense("what is no frame");
    const std::uint64_t bytes = is_signal ? kSignalBytes : frame.bytes_or_count;
    std::byte* place = memory.place(frame.region, frame.at, bytes);
    if (place == nullptr) return nonsense(fmt::format("{} bytes for memory that this process has not exposed", bytes));
    if (is_signal) {
      auto* words = reinterpret_cast<std::uint64_t*>(place);
      if (reinterpret_cast<std::uintptr_t>(place) % kSignalBytes != 0) {
        return nonsense(fmt::format("a signal for place {}, which is no multiple of {}", frame.at, kSignalBytes));
      }
      std::atomic_ref(words[1]).store(frame.tag, std::memory_order_relaxed);
      std::atomic_ref(words[0]).store(frame.bytes_or_count, std::memory_order_release);
    } else {
      const std::size_t here = std::min<std::uint64_t>(bytes, end_ - begin_);
      std::memcpy(place, buffer_.data() + begin_, here);
      begin_ += here;
      to_ = place + here;
      left_ = bytes - here;
    }
  }
  return {};
}

}  // namespace tutti::tcp
