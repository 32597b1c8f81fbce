// Random programs of messages: the same seed gives the same list of messages on every rank. Each rank sends and
// receives its own in an order of its choice, blocking, in the background or in groups, and checks each against the
// model: of a pair and tag, the n-th receive gets the n-th message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/collectives/must.h"
#include "tutti/tutti.hpp"

namespace tutti::testing {

class TransferProgram {
 public:
  TransferProgram(Communicator& comm, unsigned seed)
      : comm_(comm), shared_(seed), own_(seed + 1 + static_cast<unsigned>(comm.rank())) {}

  /// All messages at once, started in any order that keeps those of a pair and tag, and waited for in any order.
  void run_shuffled(int messages) {
    make(messages, /*mixed=*/true);
    std::vector<int> order = own_messages();
    std::shuffle(order.begin(), order.end(), own_);
    // Back into the order of the program what a receive, or a send, of the same tag may mix up. A receive from any rank
    // must not take what one from a certain rank is waiting for: those come first.
    for (const bool sending : {true, false}) {
      std::map<int, std::vector<std::size_t>> places;  // by tag
      for (std::size_t i = 0; i < order.size(); ++i) {
        const int m = order[i] / 2;
        if ((order[i] % 2 == 0) == sending) places[messages_[m].tag].push_back(i);
      }
      for (const auto& [tag, at] : places) {
        std::vector<int> ids;
        for (const std::size_t i : at) ids.push_back(order[i]);
        std::sort(ids.begin(), ids.end(), [&](int a, int b) {
          const bool any_a = !sending && messages_[a / 2].any;
          const bool any_b = !sending && messages_[b / 2].any;
          return std::pair(any_a, a) < std::pair(any_b, b);
        });
        for (std::size_t i = 0; i < at.size(); ++i) order[at[i]] = ids[i];
      }
    }
    for (const int id : order) start(id);
    std::shuffle(works_.begin(), works_.end(), own_);
    finish();
  }

  /// In the order of the program, each message blocking or not, alone or grouped, with collectives in between.
  void run_in_order(int messages) {
    make(messages, /*mixed=*/false);
    for (int m = 0; m < messages; ++m) {
      if (messages_[m].collective) {
        std::int32_t one = 1;
        if (draw(own_, 2) == 0) {
          comm_.all_reduce(&one, &one, 1, DataType::i32);
        } else {
          comm_.all_reduce_async(&one, &one, 1, DataType::i32).wait();
        }
        MUST(one == comm_.size());
      }
      one_message(m);
    }
    finish();
  }

 private:
  struct Message {
    int from = 0;
    int to = 0;
    int tag = 0;
    bool any = false;  // received from any rank
    std::size_t count = 0;
    int number = 0;  // among those of its pair and tag
    bool collective = false;
  };
  // A receive, in the order of the calls.
  struct Received {
    int message = 0;
    int source = -2;
    std::vector<std::int32_t> data;
  };

  static std::size_t draw(std::mt19937& random, std::size_t below) { return random() % below; }

  /// `mixed`: of the tags that are received from any rank, some messages are received from a certain one.
  void make(int messages, bool mixed) {
    messages_.clear();
    contents_.assign(static_cast<std::size_t>(messages), {});
    received_.clear();
    received_.reserve(static_cast<std::size_t>(messages));
    const auto ranks = static_cast<std::size_t>(comm_.size());
    std::map<std::pair<std::pair<int, int>, int>, int> numbers;
    for (int m = 0; m < messages; ++m) {
      Message message;
      message.from = static_cast<int>(draw(shared_, ranks));
      message.to = (message.from + 1 + static_cast<int>(draw(shared_, ranks - 1))) % comm_.size();
      message.tag = static_cast<int>(draw(shared_, 8));
      // The sender may be any rank: so the size goes by the tag.
      const bool by_tag = message.tag >= 6;
      message.any = by_tag && (!mixed || draw(shared_, 3) != 0);
      const std::size_t counts[] = {0, 1, 3, 100, 2047, 2048, 5000, 20'000, 120'001};
      message.count = by_tag ? counts[message.tag % 3 + 1] : counts[draw(shared_, std::size(counts))];
      message.number = numbers[{{message.from, message.to}, message.tag}]++;
      message.collective = draw(shared_, 10) == 0;
      messages_.push_back(message);
    }
  }

  std::vector<int> own_messages() const {  // 2 * message, and one more for a receive
    std::vector<int> ids;
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      if (messages_[m].from == comm_.rank()) ids.push_back(static_cast<int>(2 * m));
      if (messages_[m].to == comm_.rank()) ids.push_back(static_cast<int>(2 * m + 1));
    }
    return ids;
  }

  static std::int32_t element(int from, int to, int tag, int number, std::size_t index) {
    return static_cast<std::int32_t>(from * 1'000'003 + to * 70'001 + tag * 5'003 + number * 101) +
           static_cast<std::int32_t>(index);
  }

  std::vector<std::int32_t>& content(int m) {
    const Message& message = messages_[static_cast<std::size_t>(m)];
    std::vector<std::int32_t>& data = contents_[static_cast<std::size_t>(m)];
    data.resize(message.count);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = element(message.from, message.to, message.tag, message.number, i);
    }
    return data;
  }

  Received& room(int m) {
    Received& received = received_.emplace_back();
    received.message = m;
    received.data.assign(messages_[static_cast<std::size_t>(m)].count, -1);
    return received;
  }

  void start(int id) {
    const Message& message = messages_[static_cast<std::size_t>(id / 2)];
    if (id % 2 == 0) {
      const auto& data = content(id / 2);
      works_.push_back(comm_.send_async(data.data(), data.size(), DataType::i32, message.to, message.tag));
    } else {
      Received& in = room(id / 2);
      works_.push_back(comm_.recv_async(in.data.data(), in.data.size(), DataType::i32,
                                        message.any ? kAnySource : message.from, message.tag, &in.source));
    }
  }

  void one_message(int m) {
    const Message& message = messages_[static_cast<std::size_t>(m)];
    const bool sends = message.from == comm_.rank();
    if (!sends && message.to != comm_.rank()) return;
    const int id = 2 * m + (sends ? 0 : 1);
    // A receive from any rank may take a later message than its own, so that its own sender is not to wait for it.
    const bool may_block = message.tag < 6 || !sends;
    switch (draw(own_, 4)) {
      case 0:
        if (may_block) {
          if (sends) {
            const auto& data = content(m);
            comm_.send(data.data(), data.size(), DataType::i32, message.to, message.tag);
          } else {
            Received& in = room(m);
            comm_.recv(in.data.data(), in.data.size(), DataType::i32, message.any ? kAnySource : message.from,
                       message.tag, &in.source);
          }
          return;
        }
        break;
      case 1:
        if (may_block && message.tag < 6 && !works_.empty() && waitable_) {
          works_.back().wait();
          works_.pop_back();
        }
        break;
      default: break;
    }
    start(id);
    waitable_ = message.tag < 6;
  }

  void finish() {
    for (Work& work : works_) work.wait();
    works_.clear();
    waitable_ = false;
    std::map<std::pair<int, int>, int> next;  // by source and tag
    for (const Received& in : received_) {
      const Message& message = messages_[static_cast<std::size_t>(in.message)];
      const std::string what = "a receive of tag " + std::to_string(message.tag) + (message.any ? " from any" : "");
      if (!message.any && in.source != message.from) {
        throw std::runtime_error(what + ": source is " + std::to_string(in.source));
      }
      const int number = next[{in.source, message.tag}]++;
      for (std::size_t i = 0; i < in.data.size(); ++i) {
        if (in.data[i] == element(in.source, comm_.rank(), message.tag, number, i)) continue;
        throw std::runtime_error(what + ": element " + std::to_string(i) + " of message " + std::to_string(number) +
                                 " from rank " + std::to_string(in.source) + " is " + std::to_string(in.data[i]));
      }
    }
    comm_.barrier();  // no rank goes on to another program before
    MUST(comm_.memory().messages == 0);
  }

  Communicator& comm_;
  std::mt19937 shared_;
  std::mt19937 own_;
  std::vector<Message> messages_;
  std::vector<std::vector<std::int32_t>> contents_;  // of what this rank sends
  std::vector<Received> received_;
  std::vector<Work> works_;
  bool waitable_ = false;  // the last of them
};

/// Several programs; then the memory that unexpected messages took has been given back.
inline void run_transfer_programs(Communicator& comm, unsigned seed, int rounds) {
  TransferProgram program(comm, seed);
  for (int round = 0; round < rounds; ++round) {
    program.run_shuffled(60);
    program.run_in_order(60);
  }
}

}  // namespace tutti::testing
