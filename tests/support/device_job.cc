#include "tests/support/device_job.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "collectives/executor/cuda/kernels.h"
#include "collectives/executor/cuda/segments.h"

namespace tutti::testing {

using executor::cuda::HostPlace;
using executor::cuda::LaunchArguments;
using executor::cuda::Program;

namespace {

constexpr std::uint64_t kLimitNs = 15'000'000'000;  // a rank that has failed keeps the others waiting for so long

const Program& head(const std::vector<std::byte>& program) { return *reinterpret_cast<const Program*>(program.data()); }

}  // namespace

AlignedBytes::AlignedBytes(std::size_t bytes)
    : data_(static_cast<std::byte*>(::operator new (std::max<std::size_t>(bytes, 1), std::align_val_t{256}))),
      size_(bytes) {
  std::memset(data_.get(), 0, bytes);
}

int blocks_of(const std::vector<std::byte>& program) { return head(program).lanes * head(program).strips; }

int kernel_of(const std::vector<std::byte>& program) {
  return executor::cuda::kernel_of(head(program).type, head(program).op, head(program).reduces);
}

DeviceJob::DeviceJob(int ranks, const transport::DeviceWindowSizes& sizes) : sizes_(sizes) {
  ranks_.resize(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    windows_.emplace_back(sizes_.bytes());
    host_.push_back(std::make_unique<transport::DeviceHostWords>());
    host_.back()->limit_ns = kLimitNs;
    peers_.push_back({.window = reinterpret_cast<std::uint64_t>(window(r)), .flags = transport::kSameAddresses});
    ranks_[static_cast<std::size_t>(r)].job_ = this;
    ranks_[static_cast<std::size_t>(r)].index_ = r;
  }
}

void DeviceJob::run(const std::function<void(DeviceRank&)>& body) {
  std::vector<std::thread> threads;
  for (DeviceRank& rank : ranks_) threads.emplace_back([&body, &rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

transport::DeviceHostWords& DeviceRank::host() { return *job_->host_[static_cast<std::size_t>(index_)]; }

transport::DeviceState& DeviceRank::state() { return *reinterpret_cast<transport::DeviceState*>(job_->window(index_)); }

LaunchArguments DeviceRank::arguments(const std::vector<std::byte>& program, const DeviceCallArguments& call) const {
  const auto at = [](const std::vector<std::byte>* p) {
    return p == nullptr ? nullptr : reinterpret_cast<const Program*>(p->data());
  };
  LaunchArguments a;
  a.peers = job_->peers_.data();
  a.host = job_->host_[static_cast<std::size_t>(index_)].get();
  a.sizes = job_->sizes_;
  a.rank = index_;
  executor::cuda::LaunchCall& c = a.calls[0];
  c.first = at(&program);
  c.if_plain = at(call.if_plain);
  c.if_in_place = at(call.if_in_place);
  c.input = reinterpret_cast<std::uint64_t>(call.input);
  c.output = reinterpret_cast<std::uint64_t>(call.output);
  c.fingerprint = call.fingerprint;
  c.announcement.input = c.input;
  c.announcement.output = c.output;
  std::memcpy(&c.announcement.factor, &call.factor, sizeof(double));
  c.announcement.what = call.what;
  c.announcement.count = call.count;
  c.announcement.flags = call.flags;
  return a;
}

bool DeviceRank::call(const std::vector<std::byte>& program, const DeviceCallArguments& call) {
  int blocks = blocks_of(program);
  for (const auto* other : {call.if_plain, call.if_in_place}) {
    if (other != nullptr) blocks = std::max(blocks, blocks_of(*other));
  }
  return launch(kernel_of(program), blocks, arguments(program, call));
}

bool DeviceRank::call_together(
    const std::vector<std::pair<const std::vector<std::byte>*, DeviceCallArguments>>& calls) {
  LaunchArguments together = arguments(*calls[0].first, calls[0].second);
  together.count = static_cast<std::int32_t>(calls.size());
  int blocks = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    together.calls[i] = arguments(*calls[i].first, calls[i].second).calls[0];
    blocks = std::max(blocks, blocks_of(*calls[i].first));
  }
  return launch(kernel_of(*calls[0].first), blocks, together);
}

bool DeviceRank::call_segmented(const std::vector<std::byte>& program, const DeviceCallArguments& call) {
  LaunchArguments arguments = this->arguments(program, call);
  const transport::DeviceWindowSizes& sizes = job_->sizes_;
  const std::uint64_t number = ++calls_;
  const auto wait_for = [&](std::size_t offset, std::uint64_t value) {
    auto& word = *reinterpret_cast<std::uint64_t*>(job_->window(index_) + offset);
    unsigned turns = 0;
    while (std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire) < value) {
      executor::cuda::give_way(turns);
    }
  };
  bool well = true;
  for (const executor::cuda::SegmentLaunch& one : executor::cuda::segments_of(head(program))) {
    for (const auto& wait : one.before) {
      wait_for(sizes.signals_at() + sizes.link_index(wait.peer, 0, wait.channel) * sizeof(transport::DeviceSignal),
               ++seen_[{wait.peer, wait.channel}]);
    }
    arguments.segment = one.segment;
    well = launch(kernel_of(program), one.segment.begins ? 1 : blocks_of(program), arguments) && well;
    for (int peer = 0; one.segment.begins && number > 1 && peer < sizes.ranks; ++peer) {
      wait_for(sizes.call_offset(peer, number - 1), number - 1);
    }
  }
  return well;
}

bool DeviceRank::launch(int kernel, int blocks, const LaunchArguments& arguments) {
  return run_blocks(blocks, [&](const HostPlace& place) { executor::cuda::walk_on_host(kernel, arguments, place); });
}

bool DeviceRank::run_p2p(const std::vector<std::byte>& p2p, int blocks) {
  executor::cuda::P2pArguments a;
  a.p2p = reinterpret_cast<const executor::cuda::P2pList*>(p2p.data());
  a.peers = job_->peers_.data();
  a.host = job_->host_[static_cast<std::size_t>(index_)].get();
  a.sizes = job_->sizes_;
  a.rank = index_;
  return run_blocks(blocks, [&](const HostPlace& place) { executor::cuda::run_p2p_on_host(a, place); });
}

bool DeviceRank::run_blocks(int blocks, const std::function<void(const HostPlace&)>& body) {
  const auto block = [&](std::uint32_t index) {
    HostPlace place{.index = index, .blocks = static_cast<std::uint32_t>(blocks)};
    if (job_->fake_clock_) place.clock = [this] { return job_->clock_.load(); };
    std::minstd_rand random(job_->disturbance_ + index * 7919 + static_cast<unsigned>(index_) * 104729 + 1);
    if (job_->disturbance_ != 0) {
      place.disturb = [&random] {
        if (random() % 61 == 0) std::this_thread::yield();
      };
    }
    body(place);
  };
  team_->run(static_cast<std::uint32_t>(blocks), block);
  return std::atomic_ref<std::uint64_t>(state().failed).load() == 0;
}

}  // namespace tutti::testing
