#include "transport/ucx/links.h"

#ifdef TUTTI_HAS_UCX

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transport/sockets/fd.h"

namespace tutti::ucx {

namespace {

constexpr unsigned kMessageId = 0;
// UCX before 1.14 may owe a peer an answer while their connection is being made. If that connection then breaks, or
// the worker ends, UCX aborts the process (openucx/ucx, pull request 8175).
constexpr unsigned kMinorThatMayEnd = 14;
// So long the peers have to take what is still under way at the end, and UCX to close an endpoint by force.
constexpr std::int64_t kGoodbyeNs = 1'000'000'000;

/// UCX 1.13 aborts the process when an endpoint finds no descriptor left (ucp_worker_iface_activate). Whether there are
/// some, is asked first; where another thread then takes them it still does.
Status check_descriptors_left(int any) {
  constexpr std::size_t kForOneEndpoint = 4;  // its sockets, and a file of /proc/net that is read at the same time
  std::array<sockets::Fd, kForOneEndpoint> taken;
  for (sockets::Fd& one : taken) {
    one = sockets::Fd(::fcntl(any, F_DUPFD_CLOEXEC, 0));
    if (!one) return system_error("UCX: no endpoint can be made", errno);
  }
  return {};
}

}  // namespace

Links::Links(const WireJob& job, Context& context, transport::ExposedMemory& exposed, transport::Sources& sources)
    : job_(job), context_(context), exposed_(exposed), sources_(sources) {
  for (int m = 0; m < job_.size(); ++m) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->links = this;
    links_.back()->rank = m;
    links_.back()->lanes.resize(static_cast<std::size_t>(job_.lanes));
  }
}

Status Links::start() {
  TUTTI_TRY(wakeup_.open("UCX"));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Links::on_message;
  handler.arg = this;
  return check(ucp().worker_set_am_recv_handler(context_.worker(), &handler), "ucp_worker_set_am_recv_handler");
}

// UCX also aborts when a worker ends while some peer is stopped and takes nothing.
bool Links::close_all(bool has_failed) {
  const auto half_made = [this](const auto& link) {
    return job_.linked(link->rank) && !link->reached && !link->answered;
  };
  if (ucp().minor < kMinorThatMayEnd && has_failed && std::any_of(links_.begin(), links_.end(), half_made))
    return false;
  const std::int64_t end = now_ns() + kGoodbyeNs;
  // A peer that is heard now gets no endpoint: UCX aborts the process when a worker ends with one that is half made.
  close_broken();
  for (const auto& link : links_) {
    if (link->endpoint != nullptr) close(link->endpoint, 0);
    link->endpoint = nullptr;
  }
  do {
    (void)ucp().worker_progress(context_.worker());
    close_broken();
  } while (!closings_.empty() && now_ns() < end);
  return closings_.empty();
}

Status Links::meet(const std::vector<std::string>& addresses) {
  for (int m = 0; m < job_.size(); ++m) {
    const std::string& address = addresses[static_cast<std::size_t>(m)];
    if (job_.linked(m) && (!address.starts_with(kMagic) || address.size() <= kAddressAt)) {
      return unsupported(fmt::format("{} cannot be reached by UCX: it has given no UCX address of this version",
                                     job_.names[static_cast<std::size_t>(m)]));
    }
    if (job_.linked(m)) link_of(m).pass = pass_between(context_.address(), address);
  }
  addresses_ = addresses;
  return {};
}

Status Links::connect(Link& link) {
  if (link.broken) return link.why;
  if (link.endpoint != nullptr) return {};
  if (Status left = check_descriptors_left(context_.event()); !left.ok()) {
    fail(link, std::move(left));
    return link.why;
  }
  ucp_ep_params_t how{};
  how.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  const std::string& address = addresses_[static_cast<std::size_t>(link.rank)];
  how.address = reinterpret_cast<const ucp_address_t*>(address.data() + kAddressAt);
  how.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  how.err_handler = {&Links::on_error, &link};
  ucs_status_t made = ucp().ep_create(context_.worker(), &how, &link.endpoint);
  if (made == UCS_ERR_UNREACHABLE) {  // shared memory does not tell of a peer's death
    how.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    made = ucp().ep_create(context_.worker(), &how, &link.endpoint);
  }
  if (made != UCS_OK) {
    link.endpoint = nullptr;
    fail(link, made);
    return link.why;
  }
  log::debug("UCX: an endpoint to {} is made", job_.names[static_cast<std::size_t>(link.rank)]);
  return {};
}

// Sending.

Links::Sending& Links::open_in(Link& link, Lane& lane, std::size_t bytes) {
  if (lane.open != nullptr && !lane.open->message.has_room_for(bytes)) {
    send(link, static_cast<int>(&lane - link.lanes.data()));
  }
  if (lane.open == nullptr) {
    if (free_sendings_.empty()) {
      sendings_.emplace_back(context_.message_bytes());
      sendings_.back().links = this;
      free_sendings_.push_back(&sendings_.back());
    }
    lane.open = free_sendings_.back();
    free_sendings_.pop_back();
    lane.open->link = &link;
  }
  return *lane.open;
}

void Links::large_put(Link& link, int lane, const transport::Attached& to, std::size_t at, const std::byte* from,
                      std::size_t bytes, Ticket& ticket) {
  Lane& way = link.lanes[static_cast<std::size_t>(lane)];
  const std::size_t piece = std::min(bytes, context_.piece_bytes());
  Source& source = sources_.open(link.rank, (bytes + piece - 1) / piece);
  ticket = source.ticket();
  for (std::size_t done = 0; done < bytes; done += piece) {
    if (way.open != nullptr && way.open->source != nullptr) send(link, lane);
    Sending& sending = open_in(link, way, 0);
    sending.source = &source;
    sending.from = from + done;
    sending.bytes = std::min(piece, bytes - done);
    sending.message.large_put(to.number, at + done, sending.bytes);
  }
}

void Links::send(Link& link, int lane) {
  Lane& way = link.lanes[static_cast<std::size_t>(lane)];
  if (way.open == nullptr) return;
  Sending& sending = *std::exchange(way.open, nullptr);
  if (link.endpoint == nullptr) return complete(sending);  // it has broken
  sending.message.set_head(job_.rank, lane, way.next++, link.pass);
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.cb.send = &Links::on_sent;
  how.user_data = &sending;
  if (context_.by_pieces()) {
    how.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    how.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  if (link.first_ns == 0) link.first_ns = now_ns();
  const std::string_view text = sending.message.bytes();
  void* request =
      ucp().am_send_nbx(link.endpoint, kMessageId, text.data(), text.size(), sending.from, sending.bytes, &how);
  if (UCS_PTR_IS_PTR(request)) {
    ++link.outstanding;
    return;
  }
  complete(sending);
  if (UCS_PTR_IS_ERR(request)) return fail(link, UCS_PTR_STATUS(request));
  link.reached = true;
}

void Links::complete(Sending& sending) {
  if (Source* source = std::exchange(sending.source, nullptr); source != nullptr) sources_.complete(*source);
  sending.message.clear();
  sending.from = nullptr;
  sending.bytes = 0;
  free_sendings_.push_back(&sending);
}

void Links::on_sent(void* request, ucs_status_t status, void* user) {
  Sending& sending = *static_cast<Sending*>(user);
  Links& self = *sending.links;
  Link& link = *sending.link;
  self.ucp().request_free(request);
  self.complete(sending);
  --link.outstanding;
  if (status != UCS_OK) return self.fail(link, status);
  link.reached = true;
}

/// UCX reads what it has taken until the peer has it, or until the endpoint is closed by force.
void Links::release(Ticket ticket) {
  const Source* source = sources_.find(ticket);
  if (source == nullptr) return;
  const std::string& who = job_.names[static_cast<std::size_t>(source->rank)];
  const std::string why = fmt::format(
      "the link to {} by UCX over {} has been closed: a call has failed here, and not all that it had put was taken",
      who, context_.devices());
  fail(link_of(source->rank), Status(Code::system, why));
  const std::int64_t end = now_ns() + kGoodbyeNs;
  do {
    tidy();
    (void)ucp().worker_progress(context_.worker());
  } while (sources_.find(ticket) != nullptr && now_ns() < end);
}

// Failure.

void Links::on_error(void* user, ucp_ep_h, ucs_status_t status) {
  Link& link = *static_cast<Link*>(user);
  link.links->fail(link, status);
}

void Links::fail(Link& link, ucs_status_t status) {
  // What says nothing of this side says that the other one does not answer.
  const Code code = code_of(status);
  fail(link,
       Status(code == Code::system ? Code::peer_died : code,
              fmt::format("the link to {} by UCX over {} has broken: {}",
                          job_.names[static_cast<std::size_t>(link.rank)], context_.devices(), words_of(status))));
}

void Links::fail(Link& link, Status why) {
  if (link.broken) return;
  log::debug("{}", why.message());
  link.why = std::move(why);
  link.broken = true;
  for (Lane& lane : link.lanes) {
    if (lane.open != nullptr) complete(*std::exchange(lane.open, nullptr));
  }
  // UCX does not want it closed in a callback.
  if (link.endpoint != nullptr) dead_.push_back(std::exchange(link.endpoint, nullptr));
  has_news_ = true;
}

/// Does what callbacks have left to be done: endpoints to peers that were heard of first, and those of broken links.
void Links::tidy() {
  has_news_ = false;
  for (const auto& link : links_) {
    if (std::exchange(link->heard, false)) (void)connect(*link);
  }
  close_broken();
}

void Links::close(ucp_ep_h endpoint, std::uint32_t flags) {
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = flags;
  void* request = ucp().ep_close_nbx(endpoint, &how);
  if (UCS_PTR_IS_PTR(request)) closings_.push_back(request);
}

/// Begins to close the endpoints of broken links, and forgets which closings are done.
void Links::close_broken() {
  // What is under way settles, with an error.
  for (ucp_ep_h endpoint : std::exchange(dead_, {})) close(endpoint, UCP_EP_CLOSE_FLAG_FORCE);
  std::erase_if(closings_, [this](void* request) {
    if (ucp().request_check_status(request) == UCS_INPROGRESS) return false;
    ucp().request_free(request);
    return true;
  });
  if (!closings_.empty()) has_news_ = true;
}

// UCX tells neither of a connection that is being made nor of one that is there. But the first message does not leave
// before it is, and before the peer has moved its side once.
std::string Links::obstacle(int rank) {
  const Link& link = link_of(rank);
  if (link.reached || link.outstanding == 0 || link.endpoint == nullptr) return "";
  return fmt::format("nothing that was sent to it by UCX over {} has left within {:.1f} s", context_.devices(),
                     static_cast<double>(now_ns() - link.first_ns) * 1e-9);
}

// Moving.

bool Links::move() {
  const bool moved = ucp().worker_progress(context_.worker()) != 0;
  if (has_news_) tidy();
  wakeup_.moved(moved);
  return moved;
}

// Only a worker that has nothing to do tells of what comes.
bool Links::prepare_to_sleep() {
  if (wakeup_.missed()) return false;
  if (move() || ucp().worker_arm(context_.worker()) != UCS_OK) return false;
  wakeup_.prepare_to_sleep();
  return true;
}

}  // namespace tutti::ucx

#endif
