// Parts of a Comm that hold a program's own things: user operators, registrations, and ids by which ranks will meet.
// Threads: any for UserOperators and Registrations; one at a time for an id's holder.
// Limits: UserOperators::kMost operators at a time for each communicator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "collectives/create.h"
#include "nccl/abi.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// A reduction made by ncclRedOpCreatePreMulSum.
struct Scaling {
  DataType type{};
  double factor = 1.0;
  const void* scalar = nullptr;  // not null: read when the call runs
};

/// The operators that a program makes by ncclRedOpCreatePreMulSum for one communicator. Thread-safe.
class UserOperators {
 public:
  static constexpr unsigned kMost = 1U << 10;

  /// Returns the operator's number; nullopt: there are kMost already.
  std::optional<ncclRedOp_t> add(const Scaling& scaling) {
    const std::lock_guard lock(mutex_);
    std::size_t i = 0;
    while (i < scalings_.size() && scalings_[i]) ++i;
    if (i == kMost) return std::nullopt;
    if (i == scalings_.size()) scalings_.emplace_back();
    scalings_[i] = scaling;
    return static_cast<ncclRedOp_t>(ncclNumOps + salt_ * kMost + static_cast<unsigned>(i));
  }

  /// nullopt: the operator is another communicator's, or has been removed.
  std::optional<Scaling> find(ncclRedOp_t op) const {
    const std::lock_guard lock(mutex_);
    const std::optional<std::size_t> i = place_of(op);
    return i ? scalings_[*i] : std::nullopt;
  }

  /// Returns false where find() finds none.
  bool remove(ncclRedOp_t op) {
    const std::lock_guard lock(mutex_);
    const std::optional<std::size_t> i = place_of(op);
    if (i) scalings_[*i].reset();
    return i.has_value();
  }

 private:
  static unsigned next_salt() {
    static std::atomic<unsigned> next{0};
    return next.fetch_add(1, std::memory_order_relaxed) % (1U << 20);
  }

  std::optional<std::size_t> place_of(ncclRedOp_t op) const {
    if (op < ncclNumOps) return std::nullopt;
    const unsigned number = static_cast<unsigned>(op) - ncclNumOps;
    const std::size_t i = number % kMost;
    if (number / kMost != salt_ || i >= scalings_.size() || !scalings_[i]) return std::nullopt;
    return i;
  }

  const unsigned salt_ = next_salt();  // so that another communicator's operators are told from this one's
  mutable std::mutex mutex_;
  std::vector<std::optional<Scaling>> scalings_;  // guarded by mutex_
};

/// The handles that ncclCommRegister has returned for a communicator. None is null or returned twice. Thread-safe.
class Registrations {
 public:
  void* add() {
    const std::lock_guard lock(mutex_);
    handles_.insert(++last_);
    return reinterpret_cast<void*>(last_);  // NOLINT(performance-no-int-to-ptr): a number that only looks like one
  }

  /// Returns false where the handle is another communicator's, or has been removed.
  bool remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    return handles_.erase(reinterpret_cast<std::uintptr_t>(handle)) > 0;
  }

 private:
  std::mutex mutex_;
  std::set<std::uintptr_t> handles_;  // guarded by mutex_
  std::uintptr_t last_ = 0;           // guarded by mutex_
};

/// An id by which ranks will meet, or none. While it is held, the socket of an id that this process has made stays
/// open. Not thread-safe.
class HeldId {
 public:
  HeldId() = default;
  ~HeldId() { drop(); }
  HeldId(const HeldId&) = delete;
  HeldId& operator=(const HeldId&) = delete;

  const std::optional<UniqueId>& id() const { return id_; }
  void set(const UniqueId& id) {
    drop();
    id_ = id;
  }
  void drop() {
    if (id_) forget_unique_id(*id_);
    id_.reset();
  }

 private:
  std::optional<UniqueId> id_;
};

}  // namespace tutti::nccl
