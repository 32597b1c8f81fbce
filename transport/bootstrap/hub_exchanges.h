// What the hub (hub.h) knows of the ranks, and of their exchanges that are under way.
#pragma once

#include <cstddef>
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
};

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
