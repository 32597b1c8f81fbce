#include "collectives/executor/cuda/p2p.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tutti::executor::cuda {

std::vector<std::byte> make_p2p_list(std::span<const Transfer> transfers, int most_strips) {
  std::vector<P2pTask> tasks;
  std::vector<std::vector<P2pMessage>> messages;  // of each
  P2pList head;
  head.most = most_strips;
  for (const Transfer& t : transfers) {
    const auto same = [&](const P2pTask& task) { return task.peer == t.peer && (task.sending != 0) == t.sending; };
    auto found = std::find_if(tasks.begin(), tasks.end(), same);
    if (found == tasks.end()) {
      tasks.push_back({t.peer, t.sending ? 1 : 0, 0, 0});
      messages.emplace_back();
      found = std::prev(tasks.end());
    }
    const std::uint64_t bytes = t.count * size_of(t.type);
    messages[static_cast<std::size_t>(found - tasks.begin())].push_back(
        {reinterpret_cast<std::uint64_t>(t.buffer), bytes, t.count, static_cast<std::uint64_t>(t.type)});
    head.strips = std::max(head.strips, p2p_strips(bytes, most_strips));
  }
  std::vector<P2pMessage> all;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].first = static_cast<std::uint32_t>(all.size());
    tasks[i].messages = static_cast<std::uint32_t>(messages[i].size());
    all.insert(all.end(), messages[i].begin(), messages[i].end());
  }
  head.tasks = static_cast<std::int32_t>(tasks.size());
  head.tasks_at = static_cast<std::uint32_t>(round_up(sizeof(P2pList), 16));
  head.messages_at = static_cast<std::uint32_t>(round_up(head.tasks_at + tasks.size() * sizeof(P2pTask), 16));
  head.bytes = static_cast<std::uint32_t>(head.messages_at + all.size() * sizeof(P2pMessage));
  std::vector<std::byte> block(head.bytes);
  std::memcpy(block.data(), &head, sizeof(head));
  std::memcpy(block.data() + head.tasks_at, tasks.data(), tasks.size() * sizeof(P2pTask));
  std::memcpy(block.data() + head.messages_at, all.data(), all.size() * sizeof(P2pMessage));
  return block;
}

std::vector<std::uint64_t> chunks_of(const P2pList& p2p, const P2pTask& task, std::uint64_t slot) {
  const auto* messages =
      reinterpret_cast<const P2pMessage*>(reinterpret_cast<const std::byte*>(&p2p) + p2p.messages_at) + task.first;
  std::vector<std::uint64_t> chunks(static_cast<std::size_t>(p2p.strips));
  for (int strip = 0; strip < p2p.strips; ++strip) {
    for (std::uint32_t m = 0; m < task.messages; ++m) {
      chunks[static_cast<std::size_t>(strip)] += p2p_part(messages[m].bytes, strip, p2p.most, slot).chunks;
    }
  }
  return chunks;
}

}  // namespace tutti::executor::cuda
