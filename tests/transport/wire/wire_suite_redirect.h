// The part of the suite of wires (wire_suite.h) that is about Wire::redirect().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/transport/wire/wire_suite.h"

namespace tutti::testing {

/// A put to a slot comes to the slot or, where that is allowed, to the redirect's target: whole, and to one of the two.
TEST_P(WireSuite, APutLandsWhereItIsAllowedToOrInItsSlot) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    const bool redirects = member.wire().info().name == "tcp";
    const std::size_t copied = member.wire().info().copied;
    const std::size_t sizes[] = {1, 4096, 4097, 8192, 100'003, std::size_t{1} << 20};
    constexpr std::size_t kRoom = (std::size_t{1} << 20) + 64;
    std::vector<std::byte> from(kRoom), elsewhere(kRoom);
    std::byte* slot = member.memory() + WireMember::kData;
    const auto all_are = [](const std::byte* begin, const std::byte* end, std::byte what) {
      return std::all_of(begin, end, [what](std::byte b) { return b == what; });
    };
    std::uint64_t count = 0;
    enum class Case { allowed, of_another_size, ended, never };
    for (const Case what : {Case::allowed, Case::of_another_size, Case::ended, Case::never}) {
      for (const std::size_t bytes : sizes) {
        std::memset(slot, 0xEE, kRoom);
        std::fill(elsewhere.begin(), elsewhere.end(), std::byte{0xDD});
        if (what != Case::never) {
          member.wire().redirect(slot, bytes + (what == Case::of_another_size ? 1 : 0), elsewhere.data());
        }
        if (what == Case::ended) {
          EXPECT_FALSE(member.wire().end_redirect(slot));
        }
        member.barrier();
        ++count;
        fill(from.data(), bytes, count);
        const Ticket ticket = member.put(peer, 0, WireMember::kData, from.data(), bytes);
        member.signal(peer, 0, count);
        if (!member.until_signal(peer, 0, count) || !member.until_completed(ticket)) return;
        const bool redirected = member.wire().end_redirect(slot);
        EXPECT_EQ(redirected, redirects && what == Case::allowed) << bytes << " bytes, of " << copied << " copied";
        const std::byte* there = redirected ? elsewhere.data() : slot;
        EXPECT_EQ(first_wrong(there, bytes, count), bytes);
        EXPECT_TRUE(all_are(slot + (redirected ? 0 : bytes), slot + kRoom, std::byte{0xEE}));
        EXPECT_TRUE(all_are(elsewhere.data() + (redirected ? bytes : 0), elsewhere.data() + kRoom, std::byte{0xDD}));
        EXPECT_FALSE(member.wire().end_redirect(slot)) << "it has been asked";
        member.barrier();
      }
    }
  });
}

}  // namespace tutti::testing
