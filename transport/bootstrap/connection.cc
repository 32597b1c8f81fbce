#include "transport/bootstrap/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

void Connection::send(std::string_view frame) {
  if (!open()) return;
  if (unsent_bytes() + frame.size() > kMaxUnsent) {
    close("it does not read what it is sent");
    return;
  }
  out_ += frame;
  flush();
}

void Connection::flush() {
  while (open() && unsent()) {
    const ssize_t sent = ::send(fd_.get(), out_.data() + sent_, unsent_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // A reset while sending is no reason to close yet: what the other side said before may still be unread.
      const int error = errno;
      if (error != EAGAIN && error != EPIPE && error != ECONNRESET) close_by("send", error);
      if (error == EPIPE || error == ECONNRESET) sent_ = out_.size();
      break;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  if (!unsent()) {
    out_.clear();
    sent_ = 0;
  } else if (sent_ > out_.size() / 2) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
}

void Connection::receive() {
  constexpr int kReadsPerTurn = 16;
  char buffer[64 << 10];
  for (int i = 0; i < kReadsPerTurn && open(); ++i) {
    const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      reader_.append({buffer, static_cast<std::size_t>(got)});
    } else if (got == 0 || errno == ECONNRESET) {
      close();
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      close_by("recv", errno);
    }
  }
}

void Connection::close_by(const char* call, int error_number) {
  refused_here_ = sockets::is_refused_here(error_number);
  close(refused_here_ ? system_error(call, error_number).message() : std::strerror(error_number));
}

void Connection::finish_sending() {
  if (open()) ::shutdown(fd_.get(), SHUT_WR);
}

void Connection::close(std::string why) {
  if (!open()) return;
  fd_.reset();
  why_closed_ = std::move(why);
}

}  // namespace tutti::bootstrap
