// Ranks added to a communicator. One of its ranks makes an id, which the program gives to the new ones by its own
// means. Those that are there agree by their communicator; then all meet by the id.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nccl/creation.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

constexpr const char* kGrow = "ncclCommGrow";

/// The ranks that are there agree on this.
struct Growth {
  int root = 0;  // has made the id
  UniqueId id{};
};

Outcome wrong_use(const Comm& parent, const std::string& what) {
  return {ncclInvalidUsage, fmt::format("{}: {}: {}", kGrow, parent.who(), what)};
}

/// Returns the same outcome on all ranks. Throws tutti::Error.
Outcome agree(Comm& parent, int ranks, Growth& growth) {
  const auto size = static_cast<std::size_t>(parent.size());
  const std::int32_t own[] = {ranks, parent.growth().id() ? 1 : 0};
  std::vector<std::int32_t> all(2 * size);
  parent.tutti().all_gather(own, all.data(), 2, DataType::i32);
  int makers = 0;
  for (std::size_t r = 0; r < size; ++r) {
    if (all[2 * r] != all[0]) {
      return wrong_use(
          parent, fmt::format("rank {} wants {} ranks and rank 0 {}; expected the same nRanks", r, all[2 * r], all[0]));
    }
    if (all[2 * r + 1] == 0) continue;
    growth.root = static_cast<int>(r);
    ++makers;
  }
  if (makers != 1) {
    parent.growth().drop();  // of several, none is the right one: one rank makes another
    return wrong_use(parent, fmt::format("{} ranks have called ncclCommGetUniqueId; expected one", makers));
  }
  if (parent.growth().id()) growth.id = *parent.growth().id();
  parent.tutti().broadcast(growth.id.bytes, growth.id.bytes, sizeof(growth.id.bytes), DataType::i8, growth.root);
  return {};
}

/// `rank`'s part of the new communicator. `root` matters on the ranks that were there.
Communicator meet(const UniqueId& id, int rank, int ranks, int root, bool is_new) {
  // Tutti's rank 0 is where the id was made. So these two change places, and back by a split.
  const bool moves = !is_new && (rank == root || rank == 0);
  const int place = moves ? root - rank : rank;
  Communicator made = Communicator::from_unique_id(id, place, ranks, own_options());
  std::int32_t from = root;
  made.broadcast(&from, &from, 1, DataType::i32, 0);
  return from == 0 ? made : made.split(0, rank);
}

/// A failure here is the new communicator's alone.
Outcome meet_into(const std::shared_ptr<Comm>& comm, const UniqueId& id, int rank, int ranks, int root, bool is_new) {
  Outcome outcome = make_into(kGrow, comm, [&] { return meet(id, rank, ranks, root, is_new); });
  outcome.finishes = false;
  return outcome;
}

Outcome grow_parent(Comm& parent, const std::shared_ptr<Comm>& comm, int ranks) {
  Growth growth;
  try {
    if (Outcome agreed = agree(parent, ranks, growth); !agreed.ok()) return agreed;
  } catch (...) {
    return outcome_of_current_exception(kGrow);
  }
  Outcome outcome = meet_into(comm, growth.id, parent.rank(), ranks, growth.root, /*is_new=*/false);
  parent.growth().drop();  // used up, also by a failure
  return outcome;
}

ncclResult_t grow_from(ncclComm_t handle, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* slot,
                       const ncclConfig_t* given) {
  Task task;
  Config config;
  if (const Outcome read = read_parent(kGrow, handle, slot, given, task.parent, config); !read.ok())
    return refuse(read);
  *slot = nullptr;
  const Comm& parent = *task.parent;
  if (const Outcome settled = parent.settled(kGrow); !settled.ok()) return refuse(settled);
  const auto wrong = [&](const std::string& what) {
    return refuse({ncclInvalidArgument, fmt::format("{}: {}: {}", kGrow, parent.who(), what)});
  };
  if (rank != -1) return wrong(fmt::format("rank is {}; expected -1 from a rank that has the communicator", rank));
  if (ranks <= parent.size()) {
    return wrong(fmt::format("nRanks is {} and the communicator has {}; expected more", ranks, parent.size()));
  }
  if (const auto& made = task.parent->growth().id();
      id != nullptr && made && std::memcmp(id->internal, made->bytes, sizeof(id->internal)) != 0) {
    return wrong("uniqueId is not the one that ncclCommGetUniqueId gave this rank; expected that or null");
  }
  task.slot = slot;
  task.comm = std::make_shared<Comm>(-1, -1, parent.device(), config);
  task.body = [comm = task.comm, parent = task.parent, ranks] { return grow_parent(*parent, comm, ranks); };
  return submit(std::move(task));
}

ncclResult_t join(int ranks, const ncclUniqueId* id, int rank, ncclComm_t* slot, const ncclConfig_t* given) {
  if (slot == nullptr || id == nullptr) {
    return refuse({ncclInvalidArgument, fmt::format("{}: {} is null, for a rank that has no communicator yet", kGrow,
                                                    slot == nullptr ? "newcomm" : "uniqueId")});
  }
  *slot = nullptr;
  if (rank < 1 || rank >= ranks) {
    return refuse(
        {ncclInvalidArgument,
         fmt::format("{}: rank is {} of {}; expected one behind the ranks that are there", kGrow, rank, ranks)});
  }
  Config config;
  if (const Outcome read = read_config(kGrow, given, {}, config); !read.ok()) return refuse(read);
  Task task;
  task.slot = slot;
  task.comm = std::make_shared<Comm>(rank, ranks, current_device(), config);
  task.body = [comm = task.comm, id = unique_id_of(*id), rank, ranks] {
    return meet_into(comm, id, rank, ranks, /*root=*/0, /*is_new=*/true);
  };
  return submit(std::move(task));
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t handle, ncclUniqueId* id)) {
  return guarded("ncclCommGetUniqueId", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommGetUniqueId", handle, comm); !found.ok()) return report(found);
    if (id == nullptr) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommGetUniqueId: {}: uniqueId is null", comm->who()));
    }
    if (const Outcome settled = comm->settled("ncclCommGetUniqueId"); !settled.ok()) return report(settled);
    if (comm->growth().id()) {
      return fail(ncclInvalidUsage,
                  fmt::format("ncclCommGetUniqueId: {}: the id that it gave before has not been used; "
                              "expected ncclCommGrow first",
                              comm->who()));
    }
    comm->growth().set(Communicator::make_unique_id());
    std::memcpy(id->internal, comm->growth().id()->bytes, sizeof(id->internal));
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommGrow,
                  (ncclComm_t handle, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* slot,
                   ncclConfig_t* given)) {
  return guarded(kGrow, [&] {
    return handle == nullptr ? join(ranks, id, rank, slot, given) : grow_from(handle, ranks, id, rank, slot, given);
  });
}

}  // namespace tutti::nccl
