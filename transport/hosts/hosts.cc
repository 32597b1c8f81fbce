#include "transport/hosts/hosts.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "base/clock.h"

namespace tutti::transport {

namespace {

constexpr std::int64_t kPartNs = 1'000'000'000;  // for far ranks that end their communicator a little later

}  // namespace

void HostsTransport::Unmap::operator()(std::byte* p) const { munmap(p, bytes); }

Result<std::unique_ptr<HostsTransport>> HostsTransport::connect(Setup setup) {
  const std::vector<std::string> keys = std::move(setup.keys);
  std::unique_ptr<HostsTransport> transport(new HostsTransport(std::move(setup)));
  TUTTI_TRY(transport->attach(keys));
  return transport;
}

HostsTransport::HostsTransport(Setup setup)
    : rank_(setup.rank),
      sizes_(setup.sizes),
      capabilities_(setup.near->capabilities()),
      near_(std::move(setup.near)),
      wire_(std::move(setup.wire)),
      members_(std::move(setup.members)),
      own_(setup.own),
      alive_(std::move(setup.alive)),
      keep_(std::move(setup.keep)),
      windows_(members_.size()),
      peers_(members_.size()) {
  capabilities_.name = "hosts";
  capabilities_.load_store = false;
  capabilities_.alpha_us = wire_->info().alpha_us;
  capabilities_.gb_per_s = wire_->info().gb_per_s;
}

Status HostsTransport::attach(const std::vector<std::string>& keys) {
  const std::size_t bytes = exposed_bytes(sizes_);
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (!far(r)) {
      windows_[static_cast<std::size_t>(r)] = near_->window(r);
      continue;
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(Code::memory_limit, fmt::format("no address space for the {} bytes of a far rank's draft", bytes));
    }
    peer(r).draft = {static_cast<std::byte*>(memory), Unmap{bytes}};
    TUTTI_ASSIGN(peer(r).region, wire_->attach(member(r), keys[static_cast<std::size_t>(r)]));
    Window& window = windows_[static_cast<std::size_t>(r)] = window_at(peer(r).draft.get(), sizes_);
    window.board = reinterpret_cast<Board*>(own_ + mirror_offset(sizes_, r));
  }
  return {};
}

HostsTransport::~HostsTransport() {
  const Pulse& pulse = windows_[static_cast<std::size_t>(rank_)].board->pulse;
  const Gone all_gone = gone();
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (peer(r).region == 0 || !far(r)) continue;
    (void)signal(r, 0, &mirror_at(r).pulse, pulse.beats.load(std::memory_order_relaxed), 1, Push::now);
  }
  bool left = all_gone();
  for (const std::int64_t since = now_ns(); !left && now_ns() - since < kPartNs; left = all_gone()) {
    if (!wire_->progress()) wire_->doze(std::chrono::milliseconds(1));
  }
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (peer(r).region != 0) wire_->detach(peer(r).region);
  }
  keep_(left ? Gone([] { return true; }) : all_gone);
}

HostsTransport::Gone HostsTransport::gone() const {
  std::vector<std::pair<int, const Board*>> mirrors;  // member, what it writes
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (far(r)) mirrors.emplace_back(member(r), reinterpret_cast<Board*>(own_ + mirror_offset(sizes_, r)));
  }
  return [mirrors = std::move(mirrors), wire = wire_, alive = alive_, own = own_] {
    for (const auto& [member, mirror] : mirrors) {
      const bool departed = mirror->pulse.departed.load(std::memory_order_acquire) != 0;
      if (!departed && wire->broken(member).ok() && alive(member)) return false;
    }
    wire->conceal(own);
    return true;
  };
}

bool HostsTransport::alive(int rank) const { return far(rank) ? alive_(member(rank)) : near_->alive(rank); }

Board& HostsTransport::mirror_at(int rank) {
  return *reinterpret_cast<Board*>(peer(rank).draft.get() + mirror_offset(sizes_, rank_));
}

Status HostsTransport::put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) {
  return wire_->put(member(rank), lane, peer(rank).region, place_of(rank, to), from, bytes, ticket);
}

Status HostsTransport::signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Push push) {
  return wire_->signal(member(rank), lane, peer(rank).region, place_of(rank, to), count, tag, push);
}

}  // namespace tutti::transport
