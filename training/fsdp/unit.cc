#include "training/fsdp/unit.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tutti::training {
namespace {

// Of the whole parameter. Below this two copies are cheap, and a call is mostly its fixed cost; chosen, not measured.
constexpr std::size_t kPackedBytes = 64 * 1024;

/// [ranks, piece] of `whole` into `target`, whose padding becomes zero.
void copy_rows(const torch::Tensor& whole, const RowLayout& layout, const torch::Tensor& target) {
  const torch::Tensor flat = whole.reshape({-1});
  const std::int64_t full = flat.numel() / layout.piece(), rest = flat.numel() - full * layout.piece();
  target.narrow(0, 0, full).copy_(flat.narrow(0, 0, full * layout.piece()).view({full, layout.piece()}));
  if (full == layout.ranks) return;
  target.narrow(0, full, layout.ranks - full).zero_();
  target[full].narrow(0, 0, rest).copy_(flat.narrow(0, full * layout.piece(), rest));
}

}  // namespace

Unit::Unit(std::string name, std::vector<std::unique_ptr<ShardedParameter>> parameters, Communicator gathers,
           Communicator reductions, Options options)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      gather_comm_(std::move(gathers)),
      reduce_comm_(std::move(reductions)),
      options_(std::move(options)) {
  std::vector<std::size_t> all, trained;
  std::vector<torch::ScalarType> compute_types, reduce_types;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardedParameter& parameter = *parameters_[i];
    if (parameter.full().numel() == 0) continue;
    all.push_back(i);
    if (parameter.trained()) trained.push_back(i);
    has_frozen_ = has_frozen_ || !parameter.trained();
  }
  for (const auto& parameter : parameters_) {
    compute_types.push_back(parameter->compute_type());
    reduce_types.push_back(options_.reduce_type.value_or(parameter->type()));
  }
  gathers_ = make_parts(all, compute_types, parameters_);
  reductions_ = make_parts(trained, reduce_types, parameters_);
}

Unit::~Unit() {
  for (std::vector<Part>* parts : {&gathers_, &reductions_}) {
    for (Part& part : *parts) {
      try {
        if (part.work) part.work.wait();
      } catch (const std::exception&) {
        // Ended, so that its memory can go. The error is thrown where the call is waited for.
      }
    }
  }
}

std::vector<Unit::Part> Unit::make_parts(const std::vector<std::size_t>& members,
                                         const std::vector<torch::ScalarType>& types,
                                         const std::vector<std::unique_ptr<ShardedParameter>>& parameters) {
  std::vector<Part> parts, packed;
  for (const std::size_t i : members) {
    const RowLayout& layout = parameters[i]->layout();
    const std::size_t bytes = static_cast<std::size_t>(layout.piece() * layout.ranks) * torch::elementSize(types[i]);
    if (bytes >= kPackedBytes) {
      parts.push_back({.members = {i}, .type = types[i], .piece = layout.piece()});
      continue;
    }
    auto same = std::find_if(packed.begin(), packed.end(), [&](const Part& part) { return part.type == types[i]; });
    if (same == packed.end()) same = packed.insert(packed.end(), Part{.type = types[i]});
    same->members.push_back(i);
    same->piece += layout.piece();
  }
  parts.insert(parts.end(), packed.begin(), packed.end());
  return parts;
}

// Grows with each write to any of the shards that LibTorch counts: another thread's, too, but not one to what
// shard.data() gives, as torch::optim::SGD makes it. That one is seen: expire().
std::uint64_t Unit::shard_versions() const {
  std::uint64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->shard()._version();
  return sum;
}

bool Unit::is_unsharded() const { return unsharded_ && gathered_versions_ == shard_versions(); }

void Unit::expire() {
  if (gathering_) finish_gather();
  unsharded_ = false;
}

std::size_t Unit::bytes() const {
  std::size_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->full_bytes();
  return sum;
}

std::size_t Unit::gathered_bytes() const {
  std::size_t sum = 0;
  for (const auto& parameter : parameters_) {
    if (parameter->has_memory() && !parameter->lies_in_full()) sum += parameter->full_bytes();
  }
  return sum;
}

std::size_t Unit::reduced_bytes() const {
  std::size_t sum = 0;
  for (const Part& part : reductions_) {
    sum += static_cast<std::size_t>(part.piece) * static_cast<std::size_t>(reduce_comm_.size()) *
           torch::elementSize(part.type);
  }
  return sum;
}

// Of what travels. With offload that is host memory, pinned where a device copies from it and to it meanwhile.
torch::Tensor Unit::block(std::int64_t elements, torch::ScalarType type) const {
  if (!options_.compute_device || options_.compute_device->is_cpu())
    return empty_communicable({elements}, type, home());
  return torch::empty({elements}, torch::TensorOptions(type).pinned_memory(true));
}

torch::Tensor Unit::gather_source(Part& part) {
  ShardedParameter& first = *parameters_[part.members[0]];
  if (part.members.size() == 1 && first.type() == part.type) return first.padded_shard();
  torch::Tensor source = block(part.piece, part.type);
  std::int64_t offset = 0;
  for (const std::size_t i : part.members) {
    const torch::Tensor& own = parameters_[i]->padded_shard();
    source.narrow(0, offset, own.numel()).copy_(own);
    offset += own.numel();
  }
  return source;
}

void Unit::start_gather() {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    if (!parameter->has_memory()) parameter->take_memory();
  }
  gathering_ = true;
  unsharded_ = false;
  gathered_versions_ = shard_versions();
  for (Part& part : gathers_) {
    ShardedParameter& first = *parameters_[part.members[0]];
    part.send = gather_source(part);
    const bool direct = part.members.size() == 1 && !options_.compute_device;
    part.recv = direct ? first.flat() : block(part.piece * gather_comm_.size(), part.type);
    part.work = options_.side->start(part.send.device(), [&] {
      return gather_comm_.all_gather_async(part.send.data_ptr(), part.recv.data_ptr(), count_of(part.send),
                                           *floating_type_of(part.send), in_stream_of(part.send));
    });
  }
}

void Unit::finish_gather() {
  const torch::NoGradGuard no_grad;
  for (Part& part : gathers_) {
    part.work.wait();
    part.work = {};
    if (part.members.size() > 1 || options_.compute_device) {
      const torch::Tensor pieces = part.recv.view({gather_comm_.size(), part.piece});
      std::int64_t offset = 0;
      for (const std::size_t i : part.members) {
        const std::int64_t piece = parameters_[i]->layout().piece();
        parameters_[i]
            ->flat()
            .view({gather_comm_.size(), piece})
            .copy_(pieces.narrow(1, offset, piece), /*non_blocking=*/true);
        offset += piece;
      }
    }
    part.send.reset();
    part.recv.reset();
  }
  gathering_ = false;
  unsharded_ = true;
}

void Unit::reshard() {
  if (gathering_) finish_gather();
  for (const auto& parameter : parameters_) parameter->free_memory();
  unsharded_ = false;
}

// Takes the whole gradients away from their parameters.
torch::Tensor Unit::reduction_source(Part& part) {
  for (const std::size_t i : part.members) {
    torch::Tensor gradient = std::exchange(parameters_[i]->full().mutable_grad(), torch::Tensor());
    // Backward may give several parameters views of one memory. In zero1 each keeps what it has.
    const bool shares = gradient.defined() && gradient.storage().use_count() > 1;
    part.gradients.push_back(options_.keep_full_gradients && shares ? gradient.clone() : gradient);
  }
  const ShardedParameter& first = *parameters_[part.members[0]];
  const torch::Tensor& alone = part.gradients[0];
  if (part.members.size() == 1 && !options_.compute_device && alone.defined() && alone.scalar_type() == part.type &&
      alone.is_contiguous() && first.layout().padding() == 0) {
    return alone.view({-1});
  }
  torch::Tensor source = block(part.piece * reduce_comm_.size(), part.type);
  const torch::Tensor pieces = source.view({reduce_comm_.size(), part.piece});
  std::int64_t offset = 0;
  for (std::size_t m = 0; m < part.members.size(); ++m) {
    const RowLayout& layout = parameters_[part.members[m]]->layout();
    const torch::Tensor target = pieces.narrow(1, offset, layout.piece());
    if (part.gradients[m].defined()) {
      copy_rows(part.gradients[m], layout, target);
    } else {
      target.zero_();
    }
    offset += layout.piece();
  }
  if (!options_.keep_full_gradients) part.gradients.clear();
  return source;
}

void Unit::start_reduction() {
  const torch::NoGradGuard no_grad;
  for (Part& part : reductions_) {
    part.send = reduction_source(part);
    // In zero1 the mean stays in the whole gradient's memory, where it lies anyway when no copy was made.
    const bool in_place = options_.keep_full_gradients && part.gradients[0].defined() &&
                          part.send.data_ptr() == part.gradients[0].data_ptr();
    part.recv =
        in_place ? part.send.narrow(0, reduce_comm_.rank() * part.piece, part.piece) : block(part.piece, part.type);
    part.work = options_.reduction_side->start(part.send.device(), [&] {
      return reduce_comm_.reduce_scatter_async(part.send.data_ptr(), part.recv.data_ptr(), count_of(part.recv),
                                               *floating_type_of(part.recv), ReduceOp::avg,
                                               in_stream_of(part.recv, options_.call));
    });
  }
}

bool Unit::is_reduced() const {
  return std::all_of(reductions_.begin(), reductions_.end(), [](const Part& part) { return part.work.test(); });
}

void Unit::start_replica_mean(Communicator& replicas) {
  for (Part& part : reductions_) {
    part.work.wait();
    part.work = options_.reduction_side->start(part.recv.device(), [&] {
      return replicas.all_reduce_async(part.recv.data_ptr(), part.recv.data_ptr(), count_of(part.recv),
                                       *floating_type_of(part.recv), ReduceOp::avg,
                                       in_stream_of(part.recv, options_.call));
    });
  }
}

void Unit::finish_reduction(const std::vector<bool>& unused) {
  const torch::NoGradGuard no_grad;
  for (Part& part : reductions_) {
    part.work.wait();
    part.work = {};
    std::int64_t offset = 0;
    for (std::size_t m = 0; m < part.members.size(); ++m) {
      ShardedParameter& parameter = *parameters_[part.members[m]];
      const std::int64_t piece = parameter.layout().piece();
      const torch::Tensor mean = part.recv.narrow(0, offset, piece).to(parameter.type());
      offset += piece;
      if (unused[part.members[m]]) continue;
      const bool inside = options_.keep_full_gradients && part.gradients[m].defined() &&
                          part.gradients[m].scalar_type() == parameter.type() && part.gradients[m].is_contiguous() &&
                          part.gradients[m].device() == mean.device();
      if (inside) {
        parameter.add_gradient_inside(part.gradients[m], mean);
      } else {
        parameter.add_gradient(mean);
      }
    }
    part.send.reset();
    part.recv.reset();
    part.gradients.clear();
  }
}

}  // namespace tutti::training
