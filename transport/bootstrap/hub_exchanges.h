// What the hub (hub.h) knows of the ranks, and of their exchanges that are under way.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {

enum class Presence { absent, here, left, dead };

struct Member {
  Presence presence = Presence::absent;
  Connection connection;
  Identity who;
};

inline std::vector<int> ranks_that_are(const std::vector<Member>& members, Presence presence) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].presence == presence) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

struct Exchange {
  std::vector<std::optional<std::string>> blobs;
  int contributed = 0;

  /// "rank 1 of 3 has not come to exchange 2 within 5 s; ranks 0, 2 are there".
  std::string late_text(std::uint64_t sequence, const std::string& limit) const {
    std::vector<int> missing;
    std::vector<int> given;
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      (blobs[rank] ? given : missing).push_back(static_cast<int>(rank));
    }
    return fmt::format("{} of {} {} not come to exchange {} within {}; {} {} there", rank_list(missing), blobs.size(),
                       missing.size() == 1 ? "has" : "have", sequence, limit, rank_list(given),
                       given.size() == 1 ? "is" : "are");
  }
};

/// Who left may have given up waiting for others, which are the ones to name: "; rank 2 has not come to exchange 3".
inline std::string who_is_waited_for(const std::map<std::uint64_t, Exchange>& exchanges,
                                     const std::vector<Member>& members) {
  for (const auto& [sequence, exchange] : exchanges) {
    std::vector<int> missing;
    for (const int rank : ranks_that_are(members, Presence::here)) {
      if (!exchange.blobs[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    if (missing.empty()) continue;
    return fmt::format("; {} {} not come to exchange {}", rank_list(missing), missing.size() == 1 ? "has" : "have",
                       sequence);
  }
  return {};
}

/// Of those who are left.
struct Regrouping {
  std::string among;               // whom nobody takes for gone
  std::vector<std::string> blobs;  // empty: has not come

  /// Who is waited for, lowest first; -1: nobody.
  int first_missing(const std::vector<Member>& members) const {
    for (const int rank : ranks_that_are(members, Presence::here)) {
      const auto r = static_cast<std::size_t>(rank);
      if (among[r] != 0 && blobs[r].empty()) return rank;
    }
    return -1;
  }
};

}  // namespace tutti::bootstrap
