// Two RDMA devices that a cable joins, where the tests have them: TUTTI_TEST_CABLE="rxe2,rxe3".
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

namespace tutti::testing {

/// TUTTI_VERBS_DEVICES of a host at the cable's first or its second end: both are its rails, its own end first, so that
/// all goes over the cable. Empty: there is none.
inline std::string rails_of_cable(bool first_end) {
  const char* cable = std::getenv("TUTTI_TEST_CABLE");
  const std::string ends = cable != nullptr ? cable : "";
  const std::size_t comma = ends.find(',');
  return first_end || comma == std::string::npos ? ends : ends.substr(comma + 1) + "," + ends.substr(0, comma);
}

}  // namespace tutti::testing
