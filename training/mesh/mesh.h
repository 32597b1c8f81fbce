// A mesh of ranks: each rank has a place in up to four dimensions, and a communicator along each of them.
//
//   Mesh mesh(comm, parse_mesh("fsdp=2,tp=2", comm.size()));
//   TensorParallelGpt model(whole, mesh.tp());               // always in this order: tensor, pipeline, checkpointing,
//   FullyShardedDataParallel fsdp(*model, mesh.fsdp());      // then sharding or DDP
//   rows = batch.narrow(0, mesh.data_rank() * n, n);         // ranks that share tp and pp work on different rows
//   if (comm.rank() == 0) fmt::print("{}", mesh.describe());
//
// Dimensions: dp (whole replicas), fsdp (shards of a replica's parameters), tp (slices of layers), pp (stages).
// Placement: tp is innermost, then fsdp, then dp; pp is outermost:
//   rank = ((pp * DP + dp) * FSDP + fsdp) * TP + tp.
//   So neighbouring ranks are in one tp group, which talks most (several times per layer, and nothing hides it), and
//   what is far apart are stages, which talk least. Launchers number ranks host by host.
// Hosts: the library's public API does not say where ranks are, and TUTTI_LOCAL_SIZE says nothing about the others; so
//   each rank gives a hash of its host name and the kernel's boot number, and equal hashes are one host. Containers
//   with host names of their own count as hosts of their own. A tp group that is spread over hosts is refused, unless
//   MeshOptions::tp_across_hosts.
// Communicators: a dimension that has all ranks is the world's communicator itself, one of one rank costs nothing,
//   the others come from Communicator::split (which the backend "gloo" has not). Different ones may be used at the same
//   time, each by one thread. Errors name a rank of one that was split by its dimension: "rank 1 of group 'tp' (job
//   rank 3, ...)".
// Errors: tutti::Error, invalid_argument: text that cannot be read, a product that is not the number of ranks, another
//   shape on another rank, a tp group that no host holds.
// Threads: as tutti::Communicator. A Mesh is cheap to copy (copies share the communicators).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// How many ranks lie along each dimension.
struct MeshShape {
  int dp = 1, fsdp = 1, tp = 1, pp = 1;
  int ranks() const { return dp * fsdp * tp * pp; }
  int data_ranks() const { return dp * fsdp; }  // that work on different rows
  bool operator==(const MeshShape&) const = default;
};

/// "fsdp=2,tp=2": dimensions in any order, each once; one that is not named is 1, except dp, which is then what is left
/// of `ranks`. Errors: as above.
MeshShape parse_mesh(std::string_view text, int ranks);
/// "dp=2,tp=2": the dimensions above 1; "dp=1" when there is none.
std::string to_text(const MeshShape& shape);

/// A rank's coordinates in the mesh.
struct MeshPlace {
  int dp = 0, fsdp = 0, tp = 0, pp = 0;
};
MeshPlace place_of(const MeshShape& shape, int rank);
int rank_at(const MeshShape& shape, const MeshPlace& place);

/// Collective. How many of the lower ranks are on this rank's host.
int place_on_host(Communicator comm);

struct MeshOptions {
  bool tp_across_hosts = false;
  std::string host;  // what this rank calls its host; empty: found as above
};

class Mesh {
 public:
  /// Collective over `world`, which stays usable.
  Mesh(Communicator world, const MeshShape& shape, const MeshOptions& options = {});

  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }
  /// Returns which of the data_ranks() parts of the rows this rank works on.
  int data_rank() const { return place_.dp * shape_.fsdp + place_.fsdp; }

  /// All ranks, as given.
  const Communicator& world() const { return world_; }
  /// Ranks that differ from this one in that dimension only, in its order.
  const Communicator& dp() const { return dp_; }
  const Communicator& fsdp() const { return fsdp_; }
  const Communicator& tp() const { return tp_; }
  const Communicator& pp() const { return pp_; }
  /// dp x fsdp: all ranks that work on other rows with the same part of the model. Rank: data_rank().
  const Communicator& data() const { return data_; }

  int hosts() const { return hosts_; }
  /// Returns this rank's traffic in all dimensions (and in data()), each communicator once; since they were made. What
  /// is split from them later is not in it.
  Traffic traffic() const;
  /// A picture: a line for each stage and replica; a bracket is a tp group, brackets side by side are shards.
  ///   mesh of 8 ranks on 1 host: fsdp=2,tp=2,pp=2
  ///   stage 0  replica 0  [0 1] [2 3]
  ///   stage 1  replica 0  [4 5] [6 7]
  std::string describe() const;

 private:
  MeshShape shape_;
  MeshPlace place_;
  Communicator world_, dp_, fsdp_, tp_, pp_, data_;
  std::vector<int> host_of_;  // of each rank, counted from 0 in the order of the ranks
  int hosts_ = 1;
};

}  // namespace tutti::training
