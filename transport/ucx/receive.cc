// What comes from the peers.
#ifdef TUTTI_HAS_UCX

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/ucx/links.h"

namespace tutti::ucx {

using transport::kSignalBytes;

ucs_status_t Links::on_message(void* links, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                               const ucp_am_recv_param_t* parameters) {
  return static_cast<Links*>(links)->receive({static_cast<const char*>(header), header_bytes}, data, bytes,
                                             (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t Links::receive(std::string_view text, void* data, std::size_t bytes, bool rendezvous) {
  Result<MessageReader> reading = MessageReader::open(text);
  if (!reading.ok()) {
    log::info("UCX: {}; it is ignored", reading.status().message());
    return UCS_OK;
  }
  const Head& head = reading.value().head();
  if (head.rank >= links_.size() || !job_.linked(static_cast<int>(head.rank)) ||
      head.lane >= static_cast<std::uint32_t>(job_.lanes)) {
    log::info("UCX: a message of rank {}, lane {}, which this job does not have; it is ignored", head.rank, head.lane);
    return UCS_OK;
  }
  Link& link = link_of(static_cast<int>(head.rank));
  if (addresses_.empty() || head.pass != link.pass) {
    log::info("UCX: a message that is not from {}, as it says, is ignored", job_.names[head.rank]);
    return UCS_OK;
  }
  if (link.broken) return UCS_OK;
  link.answered = true;
  if (link.endpoint == nullptr) link.heard = has_news_ = true;
  const Status status = unpack(reading.value(), data, bytes, rendezvous);
  if (!status.ok()) fail(link, status);
  return rendezvous && status.ok() ? UCS_INPROGRESS : UCS_OK;
}

/// Signals whose time has come. The memory of some may be exposed no longer.
void Links::drain(ReorderQueue& queue) {
  queue.drain([this](const ReorderQueue::Signal& signal) {
    std::byte* const cell = exposed_.place(signal.region, signal.at, kSignalBytes);
    if (cell != nullptr) transport::write_signal(cell, signal.count, signal.tag);
  });
}

Status Links::unpack(MessageReader& reading, void* data, std::size_t bytes, bool rendezvous) {
  const Head& head = reading.head();
  Link& link = link_of(static_cast<int>(head.rank));
  ReorderQueue& queue = link.lanes[head.lane].queue;
  const auto wrong = [&](const std::string& what) {
    return Status(Code::system, fmt::format("{} has sent by UCX {}", job_.names[head.rank], what));
  };
  if (!queue.expects(head.number)) return wrong(fmt::format("message {} of lane {} twice", head.number, head.lane));
  bool at_once = queue.is_next(head.number);
  std::vector<ReorderQueue::Signal> signals;
  std::byte* large = nullptr;
  Entry entry;
  const char* behind = nullptr;
  while (reading.next(entry, behind)) {
    const std::size_t size = entry.kind == Kind::signal ? kSignalBytes : entry.bytes_or_count;
    std::byte* to = exposed_.place(entry.region, entry.at, size);
    if (to == nullptr) return wrong(fmt::format("{} bytes for memory that this process has not exposed", size));
    if (entry.kind == Kind::signal && !transport::is_cell(to)) {
      return wrong(fmt::format("a signal for place {}, which is no multiple of {}", entry.at, kSignalBytes));
    }
    if (entry.kind == Kind::put) {
      std::memcpy(to, behind, size);
    } else if (entry.kind == Kind::large_put) {
      if (size != bytes || large != nullptr) return wrong(fmt::format("{} bytes where {} were due", bytes, size));
      large = to;
      if (rendezvous) {
        at_once = false;
      } else {
        std::memcpy(to, data, bytes);
      }
    } else if (at_once) {
      transport::write_signal(to, entry.bytes_or_count, entry.tag);
    } else {
      signals.push_back({entry.region, entry.at, entry.bytes_or_count, entry.tag});
    }
  }
  if (!reading.status().ok()) return wrong(reading.status().message());
  if (bytes != 0 && large == nullptr) return wrong(fmt::format("{} bytes without a destination", bytes));
  if (at_once) {
    queue.passed();
    return {};
  }
  queue.wait(head.number, std::move(signals), !rendezvous);
  if (!rendezvous) {
    drain(queue);
    return {};
  }
  if (free_receivings_.empty()) free_receivings_.push_back(&receivings_.emplace_back());
  Receiving& receiving = *free_receivings_.back();
  free_receivings_.pop_back();
  receiving = {this, &link, head.lane, head.number};
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.cb.recv_am = &Links::on_received;
  how.user_data = &receiving;
  void* request = ucp().am_recv_data_nbx(context_.worker(), data, large, bytes, &how);
  if (!UCS_PTR_IS_PTR(request)) received(receiving, UCS_PTR_STATUS(request));
  return {};
}

void Links::on_received(void* request, ucs_status_t status, std::size_t, void* user) {
  Receiving& receiving = *static_cast<Receiving*>(user);
  receiving.links->ucp().request_free(request);
  receiving.links->received(receiving, status);
}

void Links::received(Receiving& receiving, ucs_status_t status) {
  Link& link = *receiving.link;
  free_receivings_.push_back(&receiving);
  if (status != UCS_OK) return fail(link, status);
  ReorderQueue& queue = link.lanes[receiving.lane].queue;
  queue.complete(receiving.number);
  drain(queue);
}

}  // namespace tutti::ucx

#endif
