// Where communicators come from: a unique id, all ranks at once, or another communicator.

#include "nccl/creation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nccl/group.h"

namespace tutti::nccl {
namespace {

constexpr int kMostIds = 1 << 20;  // of ncclCommInitRankScalable: more is a number read from the wrong place

ncclResult_t init_rank(const char* function, ncclComm_t* slot, int ranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* given) {
  if (slot == nullptr) return refuse({ncclInvalidArgument, fmt::format("{}: comm is null", function)});
  *slot = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(
        {ncclInvalidArgument, fmt::format("{}: rank is {} of {}; expected 0 to nranks - 1", function, rank, ranks)});
  }
  Config config;
  if (const Outcome read = read_config(function, given, {}, config); !read.ok()) return refuse(read);
  Task task;
  task.slot = slot;
  task.comm = std::make_shared<Comm>(rank, ranks, current_device(), config);
  task.body = [function, comm = task.comm, id, rank, ranks] {
    return make_into(function, comm,
                     [&] { return Communicator::from_unique_id(unique_id_of(id), rank, ranks, own_options()); });
  };
  return submit(std::move(task));
}

/// Returns commName as Tutti takes names: cut, and '?' for what is not printable.
std::string group_name(std::string name) {
  constexpr std::size_t kMost = 64;
  if (name.size() > kMost) name.resize(kMost);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

/// Reads the ranks that stay when `excluded` leave. Errors: ncclInvalidArgument.
Outcome read_survivors(const Comm& parent, std::span<const int> excluded, std::vector<int>& survivors) {
  std::vector<bool> leaves(static_cast<std::size_t>(parent.size()));
  for (const int rank : excluded) {
    if (rank < 0 || rank >= parent.size()) {
      return {ncclInvalidArgument, fmt::format("ncclCommShrink: {}: excludeRanksList has {}; expected 0 to {}",
                                               parent.who(), rank, parent.size() - 1)};
    }
    if (rank == parent.rank()) {
      return {ncclInvalidArgument,
              fmt::format("ncclCommShrink: {} is itself in excludeRanksList; expected that only the others call it",
                          parent.who())};
    }
    leaves[static_cast<std::size_t>(rank)] = true;
  }
  for (int rank = 0; rank < parent.size(); ++rank) {
    if (!leaves[static_cast<std::size_t>(rank)]) survivors.push_back(rank);
  }
  return {};
}

/// Shrinks a communicator that works. Ranks that leave do not take part: the first of the others makes a unique id and
/// sends it to the rest.
Communicator shrink_working(Communicator& parent, const std::vector<int>& survivors) {
  UniqueId id{};
  const int first = survivors.front();
  if (parent.rank() != first) {
    parent.recv(id.bytes, sizeof(id.bytes), DataType::i8, first);
  } else {
    id = Communicator::make_unique_id();
    parent.group_start();
    for (const int other : survivors) {
      if (other != first) parent.send(id.bytes, sizeof(id.bytes), DataType::i8, other);
    }
    parent.group_end();
  }
  const auto own = std::lower_bound(survivors.begin(), survivors.end(), parent.rank());
  return Communicator::from_unique_id(id, static_cast<int>(own - survivors.begin()), static_cast<int>(survivors.size()),
                                      own_options());
}

/// Shrinks one that has failed: the ranks that are alive agree by shared memory. They must be those not excluded.
Communicator shrink_failed(Communicator& parent, const std::vector<int>& survivors) {
  parent.abort("ncclCommShrink");
  Communicator made = parent.shrink();
  if (made.size() != static_cast<int>(survivors.size())) {
    throw Error(Code::peer_died,
                fmt::format("{} ranks are alive and {} were to stay; expected excludeRanksList to name "
                            "those that are gone, and only those",
                            made.size(), survivors.size()));
  }
  return made;
}

}  // namespace

Outcome read_parent(const char* function, ncclComm_t handle, const ncclComm_t* slot, const ncclConfig_t* given,
                    std::shared_ptr<Comm>& parent, Config& config) {
  if (slot == nullptr) return {ncclInvalidArgument, fmt::format("{}: newcomm is null", function)};
  const Outcome found = find_comm(function, handle, parent);
  if (!found.ok()) return found;
  if (Outcome awake = parent->awake(function); !awake.ok()) return awake;
  if (Outcome alone = follows(function, *parent); !alone.ok()) return alone;
  return read_config(function, given, parent->config(), config);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id)) {
  return guarded("ncclGetUniqueId", [&] {
    if (id == nullptr) return fail(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is null");
    const UniqueId made = Communicator::make_unique_id();
    std::memcpy(id->internal, made.bytes, sizeof(id->internal));
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank)) {
  return guarded("ncclCommInitRank", [&] { return init_rank("ncclCommInitRank", comm, ranks, id, rank, nullptr); });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommInitRankConfig,
                  (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config)) {
  return guarded("ncclCommInitRankConfig",
                 [&] { return init_rank("ncclCommInitRankConfig", comm, ranks, id, rank, config); });
}

// More ids spread the bootstrap over several ranks of NCCL's; here all meet at the first.
TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommInitRankScalable,
                  (ncclComm_t * comm, int ranks, int rank, int ids_count, ncclUniqueId* ids, ncclConfig_t* config)) {
  return guarded("ncclCommInitRankScalable", [&] {
    if (ids == nullptr || ids_count < 1 || ids_count > std::min(ranks, kMostIds)) {
      return refuse({ncclInvalidArgument,
                     fmt::format("ncclCommInitRankScalable: nId is {} of {} ranks{}; expected 1 to nranks ids",
                                 ids_count, ranks, ids == nullptr ? " and commIds is null" : "")});
    }
    return init_rank("ncclCommInitRankScalable", comm, ranks, ids[0], rank, config);
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int count, const int* devices)) {
  return guarded("ncclCommInitAll", [&] {
    if (comms == nullptr) return fail(ncclInvalidArgument, "ncclCommInitAll: comm is null");
    if (count < 1) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommInitAll: ndev is {}; expected 1 or more", count));
    }
    for (int r = 0; devices != nullptr && r < count; ++r) {
      if (devices[r] >= 0) continue;
      return fail(ncclInvalidArgument,
                  fmt::format("ncclCommInitAll: devlist[{}] is {}; expected 0 or more", r, devices[r]));
    }
    const auto device_of = [&](int rank) { return devices == nullptr ? rank : devices[rank]; };
    std::vector<Communicator> made = Communicator::in_process(count, own_options());
    std::vector<std::jthread> opening;  // all ranks at once
    for (int r = 0; r < count; ++r) {
      opening.emplace_back(open_memory, std::ref(made[static_cast<std::size_t>(r)]), device_of(r));
    }
    opening.clear();
    for (int r = 0; r < count; ++r) {
      auto comm = std::make_shared<Comm>(r, count, device_of(r), Config{});
      comm->made(std::move(made[static_cast<std::size_t>(r)]), r, count);
      comm->progress().end({});
      comms[r] = open_handle(std::move(comm));
    }
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommSplit,
                  (ncclComm_t handle, int color, int key, ncclComm_t* slot, ncclConfig_t* given)) {
  return guarded("ncclCommSplit", [&] {
    Task task;
    Config config;
    if (const Outcome read = read_parent("ncclCommSplit", handle, slot, given, task.parent, config); !read.ok()) {
      return refuse(read);
    }
    *slot = nullptr;
    if (color < kSplitNoColor) {
      return refuse(
          {ncclInvalidArgument, fmt::format("ncclCommSplit: {}: color is {}; expected 0 or more, or NCCL_SPLIT_NOCOLOR",
                                            task.parent->who(), color)});
    }
    if (const Outcome settled = task.parent->settled("ncclCommSplit"); !settled.ok()) return refuse(settled);
    task.slot = slot;
    if (color != kSplitNoColor) task.comm = std::make_shared<Comm>(-1, -1, task.parent->device(), config);
    task.body = [comm = task.comm, parent = task.parent, color, key, name = group_name(config.name)]() -> Outcome {
      const auto split = [&] { return parent->tutti().split(color, key, name); };
      if (comm != nullptr) return make_into("ncclCommSplit", comm, split);
      try {
        (void)split();
        return {};
      } catch (...) {
        return outcome_of_current_exception("ncclCommSplit");
      }
    };
    return submit(std::move(task));
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommShrink,
                  (ncclComm_t handle, int* excluded, int excluded_count, ncclComm_t* slot, ncclConfig_t* given,
                   int flags)) {
  return guarded("ncclCommShrink", [&] {
    Task task;
    Config config;
    if (const Outcome read = read_parent("ncclCommShrink", handle, slot, given, task.parent, config); !read.ok()) {
      return refuse(read);
    }
    *slot = nullptr;
    const Comm& parent = *task.parent;
    if (flags != kShrinkDefault && flags != kShrinkAbort) {
      return refuse({ncclInvalidArgument, fmt::format("ncclCommShrink: {}: shrinkFlags is {}; expected "
                                                      "NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT",
                                                      parent.who(), flags)});
    }
    if (excluded_count < 0 || (excluded_count > 0 && excluded == nullptr)) {
      return refuse({ncclInvalidArgument,
                     fmt::format("ncclCommShrink: {}: excludeRanksCount is {}{}; expected a list of as many ranks",
                                 parent.who(), excluded_count, excluded == nullptr ? " and the list is null" : "")});
    }
    std::vector<int> survivors;
    const std::span<const int> list(excluded, static_cast<std::size_t>(excluded_count));
    if (const Outcome read = read_survivors(parent, list, survivors); !read.ok()) return refuse(read);
    const bool works = flags == kShrinkDefault && !parent.revoked();
    if (works) {
      if (const Outcome settled = parent.settled("ncclCommShrink"); !settled.ok()) return refuse(settled);
    }
    task.slot = slot;
    task.comm = std::make_shared<Comm>(-1, -1, parent.device(), config);
    task.body = [comm = task.comm, parent = task.parent, survivors, works] {
      return make_into("ncclCommShrink", comm, [&] {
        return works ? shrink_working(parent->tutti(), survivors) : shrink_failed(parent->tutti(), survivors);
      });
    };
    return submit(std::move(task));
  });
}

}  // namespace tutti::nccl
