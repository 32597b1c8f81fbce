#include "transport/shm/shm_peers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/boot_id.h"
#include "base/options.h"
#include "transport/shm/attach_trial.h"
#include "transport/shm/cross_memory.h"
#include "transport/sockets/fd_socket.h"

namespace tutti::transport {

namespace {

using bootstrap::Bootstrap;
using sockets::FdSocket;
using sockets::Token;

// What a rank says of itself, as the bytes of one exchange (all ranks run the same build on the same kind of machine).
struct ShmPeerInfo {
  char machine[192] = {};  // boot id, network and process namespace (shares abstract sockets and pids), TUTTI_HOST_ID
  char socket[64] = {};    // where descriptors are received
  unsigned char token[16] = {};
  std::int64_t pid = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t probe = 0;  // address of a word of plain memory
  std::uint64_t word = 0;   // which it holds, another one in each process: so the probe shows whose memory was read
};

std::uint64_t random_word() {
  const sockets::Token token = sockets::random_token();
  std::uint64_t word = 0;
  std::memcpy(&word, token.data(), sizeof(word));
  return word;
}

/// Returns the word that peers read and write, one for all ranks of this process.
std::uint64_t& probe_word() {
  static std::uint64_t word = random_word();
  return word;
}

/// Returns how long to wait for descriptors. A rank that has all of its own waits for the others at the next exchange.
/// Its deadline there may be hardly later, and its error would also name ranks that only wait for the late one. So
/// those report it before.
std::chrono::milliseconds for_descriptors(std::chrono::milliseconds deadline) {
  return deadline - std::min<std::chrono::milliseconds>(deadline / 8, std::chrono::seconds(1));
}

/// If the namespaces are unknown (no /proc), a process counts as a host of its own.
std::string machine_identity() {
  struct stat network {};
  struct stat processes {};
  const bool known = stat("/proc/self/ns/net", &network) == 0 && stat("/proc/self/ns/pid", &processes) == 0;
  const std::string place = known ? fmt::format("{}/{}/{}", boot_id(), network.st_ino, processes.st_ino)
                                  : fmt::format("unknown {:x}", random_word());
  return place + "/" + options::text(Option::host_id);
}

template <std::size_t size>
void put_text(char (&field)[size], const std::string& text) {
  std::strncpy(field, text.c_str(), sizeof(field) - 1);
}

// Owns the descriptor behind a ShmProcess.
std::shared_ptr<const ShmProcess> own_process(ShmProcess process) {
  return {new ShmProcess(std::move(process)), [](const ShmProcess* p) {
            if (p->pidfd >= 0) close(p->pidfd);
            delete p;
          }};
}

Status died(const Bootstrap& bootstrap, int rank) {
  return {Code::peer_died, bootstrap::name_of(rank, bootstrap.roster()[static_cast<std::size_t>(rank)]) +
                               " died while the communicator was made"};
}

/// Returns the failure by which a rank has ended the making; ok: none has.
Status told(const Bootstrap& bootstrap) {
  const std::optional<bootstrap::Failure> failure = bootstrap.early_failure();
  return failure && failure->comm_id == bootstrap::kMakingComm ? Status(failure->code, failure->message) : Status();
}

Status left(const Bootstrap& bootstrap, int rank) {
  return {Code::aborted, bootstrap::name_of(rank, bootstrap.roster()[static_cast<std::size_t>(rank)]) +
                             " gave up while the communicator was made"};
}

/// Why a rank has ended. One that ended because it heard of a failure may be seen before that is heard here.
Status end_of(const Bootstrap& bootstrap, int rank) {
  constexpr int kLooks = 25;
  for (int look = 0; look < kLooks && !bootstrap.has_left(rank); ++look) {
    TUTTI_TRY(told(bootstrap));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return bootstrap.has_left(rank) ? left(bootstrap, rank) : died(bootstrap, rank);
}

/// Returns an error if a rank of the job is gone, which ends the making: the rank that gave up, and why; or the one
/// that died; or else the one that has left.
Status who_is_gone(const Bootstrap& bootstrap, const std::vector<ShmProcess>& processes) {
  TUTTI_TRY(told(bootstrap));
  Status gone;
  for (int r = 0; r < bootstrap.size(); ++r) {
    if (!bootstrap.has_left(r) && !has_ended(processes[static_cast<std::size_t>(r)])) continue;
    // A rank that left in order did so because it saw another die, or for a reason of its own.
    gone = end_of(bootstrap, r);
    if (gone.code() != Code::aborted) return gone;
  }
  return gone;
}

/// The next message for this rank. Who is missing is watched meanwhile: a death ends the wait, and the deadline names
/// those that have not sent.
Result<FdSocket::Received> next_fds(FdSocket& socket, const Token& token, const Bootstrap& bootstrap,
                                    const ShmPeers& known, const std::vector<ShmProcess>& processes,
                                    std::chrono::steady_clock::time_point until, std::chrono::milliseconds limit) {
  constexpr auto kLookEvery = std::chrono::milliseconds(20);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    Result<FdSocket::Received> received = socket.accept_fds(std::min(until, now + kLookEvery), token);
    if (received.ok() || received.status().code() != Code::timeout) return received;
    const Status gone = who_is_gone(bootstrap, processes);
    if (!gone.ok() && gone.code() != Code::aborted) return gone;
    if (gone.ok() && now < until) continue;
    std::string missing;
    for (int r = 0; r < bootstrap.size(); ++r) {
      if (known.hosts[static_cast<std::size_t>(r)] != known.hosts[static_cast<std::size_t>(bootstrap.rank())]) continue;
      if (r == bootstrap.rank() || known.processes[static_cast<std::size_t>(r)] || bootstrap.has_left(r)) continue;
      missing += (missing.empty() ? "" : ", ") + bootstrap::name_of(r, bootstrap.roster()[static_cast<std::size_t>(r)]);
    }
    if (missing.empty()) return gone;
    missing += fmt::format(" has not shared its memory with rank {}", bootstrap.rank());
    if (!gone.ok()) return Status(gone.code(), gone.message() + "; " + missing);
    return Status(Code::timeout, fmt::format("{} within {}", missing, bootstrap::seconds_text(limit)));
  }
}

std::vector<int> hosts_of(const std::vector<ShmPeerInfo>& infos) {
  std::vector<int> hosts;
  int known = 0;
  for (const ShmPeerInfo& info : infos) {
    int host = known;
    for (std::size_t r = 0; r < hosts.size() && host == known; ++r) {
      if (std::strncmp(infos[r].machine, info.machine, sizeof(info.machine)) == 0) host = hosts[r];
    }
    hosts.push_back(host);
    known = std::max(known, host + 1);
  }
  return hosts;
}

bool can_reach(const ShmPeerInfo& info) {
  std::uint64_t word = 0;
  const auto pid = static_cast<pid_t>(info.pid);
  return cross_memory_read(pid, info.probe, &word, sizeof(word)).ok() && word == info.word &&
         cross_memory_write(pid, &word, info.probe, sizeof(word)).ok();
}

}  // namespace

Result<ShmPeers> exchange_shm_peers(Bootstrap& bootstrap, Arena& arena, std::chrono::milliseconds deadline) {
  const std::chrono::milliseconds limit = for_descriptors(deadline);
  const auto until = std::chrono::steady_clock::now() + limit;
  TUTTI_ASSIGN(FdSocket socket, FdSocket::listen());
  ShmPeerInfo mine;
  put_text(mine.machine, machine_identity());
  put_text(mine.socket, socket.name());
  const Token token = sockets::random_token();
  std::memcpy(mine.token, token.data(), sizeof(mine.token));
  mine.pid = getpid();
  mine.arena_bytes = arena.bytes();
  mine.probe = reinterpret_cast<std::uint64_t>(&probe_word());
  mine.word = probe_word();

  TUTTI_ASSIGN(const std::vector<std::string> blobs,
               bootstrap.all_gather({reinterpret_cast<const char*>(&mine), sizeof(mine)}));
  std::vector<ShmPeerInfo> infos(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != sizeof(ShmPeerInfo)) {
      return Status(Code::mismatch,
                    fmt::format("rank {} runs another version of Tutti than rank {}", r, bootstrap.rank()));
    }
    std::memcpy(&infos[r], blobs[r].data(), sizeof(ShmPeerInfo));
  }

  ShmPeers peers;
  peers.hosts = hosts_of(infos);
  peers.processes.resize(infos.size());
  const int rank = bootstrap.rank();
  const auto near = [&](std::size_t r) { return peers.hosts[r] == peers.hosts[static_cast<std::size_t>(rank)]; };
  const auto neighbours =
      static_cast<int>(std::count(peers.hosts.begin(), peers.hosts.end(), peers.hosts[static_cast<std::size_t>(rank)]));
  std::vector<ShmProcess> processes(infos.size());  // watched here until all are known
  struct Closer {
    const std::vector<ShmProcess>& processes;
    std::vector<bool> handed_over;
    ~Closer() {
      for (std::size_t r = 0; r < processes.size(); ++r) {
        if (processes[r].pidfd >= 0 && !handed_over[r]) close(processes[r].pidfd);
      }
    }
  } closer{processes, std::vector<bool>(infos.size())};
  std::vector<int> vanished;  // before there was a link to them
  for (std::size_t r = 0; r < infos.size(); ++r) {
    if (!near(r)) continue;
    processes[r].pid = static_cast<pid_t>(infos[r].pid);
    if (processes[r].pid == getpid()) continue;
    // The link by which a dead process is noticed even where the bootstrap server is gone too.
    processes[r].pidfd = static_cast<int>(syscall(SYS_pidfd_open, processes[r].pid, 0));
    if (processes[r].pidfd >= 0) continue;
    const int error =
        errno;  // where there is no such call, or it is refused, deaths are told by the bootstrap server alone
    if (error == EMFILE || error == ENFILE) return system_error("cannot watch a peer's process (pidfd_open)", error);
    if (error == ESRCH) vanished.push_back(static_cast<int>(r));
  }
  // All of them are looked at before one is named: who has left in order may have done so because another one died.
  for (const int r : vanished) {
    const Status end = end_of(bootstrap, r);
    if (end.code() != Code::aborted) return end;
  }
  if (!vanished.empty()) TUTTI_TRY(who_is_gone(bootstrap, processes));
  for (int r = 0; r < bootstrap.size(); ++r) {
    if (r == rank || !near(static_cast<std::size_t>(r))) continue;
    const ShmPeerInfo& info = infos[static_cast<std::size_t>(r)];
    Token theirs;
    std::memcpy(theirs.data(), info.token, theirs.size());
    // The listener there may itself wait for this rank to take what it sends.
    const Status sent = sockets::send_fds(info.socket, theirs, rank, {arena.descriptor()}, [&] {
      const Status gone = who_is_gone(bootstrap, processes);
      return gone.ok() ? socket.take_in(token) : gone;
    });
    if (sent.ok()) continue;
    // A peer that does not listen any more is gone; the bootstrap server may see it a moment later.
    for (int look = 0; look < 100; ++look) {
      TUTTI_TRY(who_is_gone(bootstrap, processes));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return sent;
  }
  for (int left = neighbours - 1; left > 0; --left) {
    TUTTI_ASSIGN(FdSocket::Received received, next_fds(socket, token, bootstrap, peers, processes, until, limit));
    const auto r = static_cast<std::size_t>(received.sender);
    if (received.sender < 0 || r >= infos.size() || !near(r) || received.fds.size() != 1 || peers.processes[r]) {
      return Status(Code::system, fmt::format("rank {} was sent file descriptors that no rank of the job sends", rank));
    }
    struct stat file {};
    if (fstat(received.fds[0].get(), &file) != 0) return system_error("cannot look at a peer's arena (fstat)", errno);
    if (static_cast<std::uint64_t>(file.st_size) != infos[r].arena_bytes) {
      return Status(Code::system, fmt::format("rank {} sent a descriptor that is not its arena", r));
    }
    TUTTI_ASSIGN(processes[r].arena, ArenaMapping::map(received.fds[0].get(), infos[r].arena_bytes));
    peers.processes[r] = own_process(processes[r]);
    closer.handed_over[r] = true;
  }
  ShmProcess self;
  self.pid = getpid();
  peers.processes[static_cast<std::size_t>(rank)] = own_process(std::move(self));

  const std::string& preferred = options::text(Option::cross_memory);
  bool reach = preferred != "off";
  for (std::size_t r = 0; r < infos.size(); ++r) reach = reach && (!near(r) || can_reach(infos[r]));
  TUTTI_ASSIGN(const std::vector<std::string> all, bootstrap.all_gather(reach ? "1" : "0"));
  peers.cross_memory = std::all_of(all.begin(), all.end(), [](const std::string& answer) { return answer == "1"; });
  if (peers.cross_memory && preferred == "auto") {
    TUTTI_ASSIGN(peers.cross_memory, attach_pays(bootstrap, arena, peers.processes));
  }
  return peers;
}

}  // namespace tutti::transport
