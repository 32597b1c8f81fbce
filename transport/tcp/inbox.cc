#include "transport/tcp/inbox.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "transport/sockets/socket.h"

namespace tutti::tcp {

using transport::kSignalBytes;

namespace {

constexpr std::size_t kHead = 4096;  // of a large put, and what goes before it

Status nonsense(std::string what) { return Status(Code::system, "it has sent " + what); }

}  // namespace

std::byte* Inbox::rest_of_put(const ExposedMemory& memory, Redirects& redirects) const {
  std::byte* const place = memory.place(region_, at_, left_);
  std::byte* const elsewhere =
      redirected_slot_ != nullptr && place != nullptr ? redirects.find_begun(redirected_slot_) : nullptr;
  return elsewhere != nullptr ? elsewhere + redirected_bytes_ : place;
}

Result<bool> Inbox::receive(int fd, const ExposedMemory& memory, Redirects& redirects) {
  std::byte* const to = left_ > 0 ? rest_of_put(memory, redirects) : nullptr;
  if (left_ > 0 && to == nullptr) return nonsense("a part of a put for memory that is exposed no longer");
  // One call for the rest of a put and what is behind it: usually its signal.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const iovec both[] = {{to, left_}, {buffer_.data() + end_, (large_ ? kHead : kBuffer) - end_}};
  const ssize_t came = left_ > 0 ? ::readv(fd, both, 2) : ::read(fd, both[1].iov_base, both[1].iov_len);
  if (came < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    const Code code = sockets::is_refused_here(errno) ? Code::system : Code::peer_died;
    return Status(code, std::strerror(errno));
  }
  if (came == 0) return Status(Code::peer_died, "the peer has closed it");
  const std::size_t of_put = std::min(static_cast<std::size_t>(came), left_);
  at_ += of_put;
  left_ -= of_put;
  redirected_bytes_ += of_put;
  end_ += static_cast<std::size_t>(came) - of_put;
  TUTTI_TRY(unpack(memory, redirects));
  return true;
}

Status Inbox::unpack(const ExposedMemory& memory, Redirects& redirects) {
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
      if (!transport::is_cell(place)) {
        return nonsense(fmt::format("a signal for place {}, which is no multiple of {}", frame.at, kSignalBytes));
      }
      transport::write_signal(place, frame.bytes_or_count, frame.tag);
    } else {
      const std::size_t here = std::min<std::uint64_t>(bytes, end_ - begin_);
      std::byte* const elsewhere = redirects.begin(place, bytes);
      redirected_slot_ = elsewhere != nullptr ? place : nullptr;
      redirected_bytes_ = here;
      std::memcpy(elsewhere != nullptr ? elsewhere : place, buffer_.data() + begin_, here);
      begin_ += here;
      large_ = bytes > kBuffer;
      region_ = frame.region;
      at_ = frame.at + here;
      left_ = bytes - here;
    }
  }
  return {};
}

}  // namespace tutti::tcp
