// The sending half of Transfers: messages to each peer, through the slots of its mailbox or by their place.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/call.h"
#include "collectives/executor/p2p/mailbox.h"
#include "collectives/executor/p2p/message_pool.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

class SendSide {
 public:
  SendSide(transport::Transport& transport, MessagePool& pool, int rank);

  /// The commonest message: small, with room for it, and nothing before it. It is not even put into the queue. Returns
  /// false if the message is not of that kind.
  bool send_at_once(const Transfer& transfer);
  /// Puts a message behind those to the same peer.
  void start(int index);
  /// Moves what can be moved.
  bool advance();
  /// Whether all that went to remote ranks has left this one.
  bool settled();
  /// Takes messages back whose place was sent, and forgets all.
  void drop();

  bool idle() const { return sending_.empty(); }
  /// Peers to which something is in progress.
  const std::vector<int>& peers() const { return sending_; }
  bool needs(int peer) const { return outgoing_[static_cast<std::size_t>(peer)].open; }
  /// Returns the word that a rank which waits for this peer alone sleeps on.
  Word& word(int peer) { return to(peer).box.emptied(); }
  std::uint64_t bytes() const { return bytes_; }
  template <class Visit>
  void each_pending(Visit&& visit) const {
    for (const int peer : sending_) {
      const Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
      pool_.each(out.handed_over, visit);
      pool_.each(out.waiting, visit);
    }
  }

 private:
  struct Outgoing {  // to one peer
    MailboxEnd box;
    transport::Board* board = nullptr;  // the peer's
    MessageList waiting;                // to be put into slots: only the first one moves
    MessageList handed_over;            // by place, until they are read
    bool open = false;                  // in sending_
    bool remote = false;

    bool busy() const { return !waiting.empty() || !handed_over.empty(); }
  };
  enum class Sent { nothing, some, handed_over, all };

  Outgoing& to(int peer) { return outgoing_[static_cast<std::size_t>(peer)]; }
  bool send(int peer);
  Sent send_more(int peer, Message& message);
  bool reachable_by_peer(const Outgoing& out, transport::Handle handle) const;
  /// Passes on the slot that was just filled.
  void pass_filled(int peer);
  void withdraw(const Outgoing& out, const Message& message);

  transport::Transport& transport_;
  transport::NetLinks* const net_;  // null: all ranks are on this host
  MessagePool& pool_;
  std::vector<Outgoing> outgoing_;
  std::vector<int> sending_;
  std::vector<transport::Ticket> incomplete_;  // of what went to remote ranks
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti::executor
