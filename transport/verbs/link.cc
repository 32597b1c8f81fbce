#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tutti::transport::verbs {

namespace {

// A packet that is not answered goes again after 4.096 us * 2^16 = 0.27 s (devices may take longer), six times: a peer
// that is gone is named after about two seconds, and a switch may lose a packet six times in a row. Not seven times,
// the most there is: Soft-RoCE takes 7 for "without end".
constexpr std::uint8_t kTimeout = 16;
constexpr std::uint8_t kRetries = 6;
constexpr std::uint8_t kHops = 64;

ibv_mtu code_of_mtu(int bytes) {
  return bytes >= 4096   ? IBV_MTU_4096
         : bytes >= 2048 ? IBV_MTU_2048
         : bytes >= 1024 ? IBV_MTU_1024
         : bytes >= 512  ? IBV_MTU_512
                         : IBV_MTU_256;
}

}  // namespace

Link::Link(Rail& rail, std::uint64_t place, std::string who, const BounceBuffers& bounce)
    : rail_(rail),
      place_(place),
      who_(std::move(who)),
      bounce_(bounce),
      window_(rail.depth()),
      bounced_(bounce.pool, bounce.chunk_bytes) {}

Result<std::unique_ptr<Link>> Link::make(Rail& rail, std::uint64_t place, std::string who,
                                         const BounceBuffers& bounce) {
  std::unique_ptr<Link> link(new Link(rail, place, std::move(who), bounce));
  TUTTI_TRY(link->create());
  return link;
}

Link::~Link() {
  if (pair_ != nullptr) rail_.verbs().ibv_destroy_qp_(pair_);
}

Status Link::create() {
  int error = 0;
  for (std::size_t carried = kMostInline; pair_ == nullptr; carried /= 2) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = rail_.completions();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = rail_.depth();
    wanted.cap.max_send_sge = 1;
    wanted.cap.max_recv_wr = wanted.cap.max_recv_sge = 1;  // none is used, but some devices take no zero
    wanted.cap.max_inline_data = static_cast<std::uint32_t>(carried);
    pair_ = rail_.verbs().ibv_create_qp_(rail_.domain(), &wanted);
    error = errno;
    if (pair_ != nullptr) inline_bytes_ = std::min<std::size_t>(wanted.cap.max_inline_data, kMostInline);
    if (carried == 0) break;
  }
  if (pair_ == nullptr) {
    return system_error(fmt::format("verbs: ibv_create_qp failed on {}, for {}", rail_.port().name(), who_), error);
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<std::uint8_t>(rail_.port().number);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  error = rail_.verbs().ibv_modify_qp_(pair_, &attributes,
                                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return {};
  return system_error(fmt::format("verbs: ibv_modify_qp to INIT failed on {}, for {}", rail_.port().name(), who_),
                      error);
}

Status Link::connect(const RailEnd& peer, std::uint32_t pair) {
  const RailEnd own = rail_.end();
  const auto kind = [](const RailEnd& end) { return end.infiniband != 0 ? "InfiniBand" : name_of(end.gid_type); };
  if (own.infiniband != peer.infiniband || (own.infiniband == 0 && own.gid_type != peer.gid_type)) {
    return unsupported(
        fmt::format("verbs: {} of this process ({}) does not go together with {} of {}; set "
                    "TUTTI_VERBS_DEVICES so that rails which meet are of one kind",
                    rail_.text(), kind(own), kind(peer), who_));
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = code_of_mtu(std::min(own.mtu, peer.mtu));
  attributes.dest_qp_num = pair;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.port_num = static_cast<std::uint8_t>(rail_.port().number);
  if (own.infiniband != 0) {
    attributes.ah_attr.dlid = peer.lid;
  } else {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attributes.ah_attr.grh.sgid_index =
        static_cast<std::uint8_t>(rail_.port().gids[static_cast<std::size_t>(rail_.gid())].index);
    attributes.ah_attr.grh.hop_limit = kHops;
  }
  const Library& verbs = rail_.verbs();
  if (const int error = verbs.ibv_modify_qp_(pair_, &attributes,
                                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) {
    Gid there;
    there.bytes = peer.gid;
    const std::string where = own.infiniband != 0 ? fmt::format("lid {}", peer.lid) : there.address();
    return unsupported(
        fmt::format("verbs: {} does not reach {} at {}: {}", rail_.text(), who_, where, std::strerror(error)));
  }
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRetries;
  attributes.sq_psn = own.first_packet;
  attributes.max_rd_atomic = 1;
  if (const int error = verbs.ibv_modify_qp_(pair_, &attributes,
                                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) {
    return system_error(fmt::format("verbs: ibv_modify_qp to RTS failed on {}, for {}", rail_.text(), who_), error);
  }
  connected_ = true;
  return {};
}

Link::Held& Link::next(bool asks, const RemoteBuffer& to) {
  Held& held = held_list_[held_++];
  const SendWindow::Next turn = window_.post(asks);
  held.request = {};
  held.request.wr_id = turn.number;
  held.request.opcode = IBV_WR_RDMA_WRITE;
  held.request.send_flags = turn.signalled ? IBV_SEND_SIGNALED : 0;
  held.request.wr.rdma.remote_addr = to.address;
  held.request.wr.rdma.rkey = to.key;
  return held;
}

bool Link::make_room() {
  if (held_ == kMostHeld || window_.room() == 0) send();
  return broken_.ok() && window_.room() > 0;
}

bool Link::hold(Write& write) {
  while (write.bytes > 0) {
    if (!make_room()) return false;
    const std::size_t piece = std::min(write.bytes, most_of(write));
    const bool carried = !write.key && piece <= inline_bytes_;
    const std::byte* at = write.from;
    if (!write.key && !carried) {
      const std::optional<BounceQueue::Place> place = bounced_.take(piece, window_.posted() + 1);
      if (!place) return false;
      std::byte* staged = bounce_.memory + place->chunk * bounce_.chunk_bytes + place->at;
      std::memcpy(staged, at, piece);
      at = staged;
    }
    const bool asks = write.key ? piece == write.bytes : !carried && bounce_.pool.left() < bounce_.pool.all() / 2;
    Held& held = next(asks, write.to);
    held.piece.length = static_cast<std::uint32_t>(piece);
    held.piece.lkey = write.key ? *write.key : carried ? 0 : bounce_.key;
    if (carried) {
      std::memcpy(held.data, at, piece);
      at = held.data;
      held.request.send_flags |= IBV_SEND_INLINE;
    }
    held.piece.addr = reinterpret_cast<std::uintptr_t>(at);
    held.request.sg_list = &held.piece;
    held.request.num_sge = 1;
    held_bytes_ += piece;
    write.from += piece;
    write.to.address += piece;
    write.bytes -= piece;
    if (held_bytes_ >= kSentAtOnce) send();
  }
  return true;
}

std::uint64_t Link::write(const Write& write) {
  Waiting waiting{write, 0, {}};
  if (backlog_.empty() && hold(waiting.rest)) return write.key && write.bytes > 0 ? window_.posted() : 0;
  const std::uint64_t before = backlog_.empty() ? window_.posted() : backlog_.back().last;
  const std::size_t most = most_of(write);
  waiting.last = before + (waiting.rest.bytes + most - 1) / most;
  backlog_.push_back(std::move(waiting));
  return backlog_.back().last | (write.key ? 0 : kIsCopied);
}

bool Link::advance() {
  if (!broken_.ok()) {
    backlog_.clear();
    if (finished()) bounced_.release(window_.posted());
    return false;
  }
  const std::uint64_t before = window_.posted();
  while (!backlog_.empty() && hold(backlog_.front().rest)) backlog_.pop_front();
  if (window_.posted() != before) send();
  return window_.posted() != before;
}

bool Link::copy_out(std::uint64_t source) {
  if ((source & kIsCopied) == 0) return false;
  for (Waiting& waiting : backlog_) {
    if (waiting.last != (source & ~kIsCopied) || !waiting.copied.empty()) continue;
    waiting.copied.assign(waiting.rest.from, waiting.rest.from + waiting.rest.bytes);
    waiting.rest.from = waiting.copied.data();
  }
  return true;
}

bool Link::probe() {
  if (!connected_ || held_ > 0 || !backlog_.empty() || !make_room()) return false;
  (void)next(true, {});  // without a piece: nothing is read or written
  send();
  return true;
}

void Link::send() {
  if (held_ == 0) return;
  if (broken_.ok()) {
    for (std::uint32_t i = 0; i + 1 < held_; ++i) held_list_[i].request.next = &held_list_[i + 1].request;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(pair_, &held_list_[0].request, &refused);
    // Soft-RoCE names none where it could not ring the doorbell: then it has them all.
    sent_ = error == 0 || refused == nullptr ? window_.posted() : refused->wr_id - 1;
    // Some providers return the number negated.
    if (error != 0) break_off(Code::system, fmt::format("ibv_post_send failed: {}", std::strerror(std::abs(error))));
  }
  held_ = 0;
  held_bytes_ = 0;
}

void Link::take(const ibv_wc& completion) {
  // Requests complete in order; after the first failure, all that follow come back too, whether they asked or not.
  if (completion.status != IBV_WC_SUCCESS && broken_.ok()) {
    const Code code = completion.status == IBV_WC_RETRY_EXC_ERR ? Code::peer_died : Code::system;
    break_off(code, words_of(rail_.verbs(), completion.status, completion.vendor_err));
  }
  window_.complete(completion.wr_id);
  bounced_.release(finished() ? window_.posted() : window_.completed());
}

void Link::break_off(Code code, const std::string& why) {
  if (!broken_.ok()) return;
  broken_ = Status(code, fmt::format("verbs: the link to {} by {} is broken: {}", who_, rail_.text(), why));
  broken_at_ns_ = now_ns();
  held_ = 0;
  held_bytes_ = 0;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)rail_.verbs().ibv_modify_qp_(pair_, &attributes, IBV_QP_STATE);
  if (finished()) bounced_.release(window_.posted());
}

}  // namespace tutti::transport::verbs
#endif
