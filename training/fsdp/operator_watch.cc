#include "training/fsdp/operator_watch.h"

#include <torch/library.h>

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::training {
namespace {

constexpr auto kKey = c10::DispatchKey::DeferredInit;
thread_local std::vector<OperatorWatch*> watches;  // of this thread
std::vector<OperatorWatch*> all_watches;           // of the process
std::shared_mutex all_watches_mutex;

/// Whether it calls back into code of users or into the engine, whose operators must be seen as well. What any other
/// operator calls has only tensors that the operator was given, so the look at the operator's own arguments is enough.
bool runs_other_code(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return !std::string_view(name.name).starts_with("aten::") || name.name == "aten::_backward";
}

}  // namespace

struct OperatorWatchKernel {
  static void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> off(kKey);
    if (!watches.empty()) {
      for (OperatorWatch* watch : watches) watch->before_(op, *stack);
    } else {
      const std::shared_lock lock(all_watches_mutex);
      for (OperatorWatch* watch : all_watches) watch->before_(op, *stack);
    }
    if (runs_other_code(op)) off.reset();
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }
};

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&OperatorWatchKernel::run>());
}

OperatorWatch::OperatorWatch(Before before) : before_(std::move(before)) {
  watches.push_back(this);
  {
    const std::unique_lock lock(all_watches_mutex);
    all_watches.push_back(this);
  }
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

OperatorWatch::~OperatorWatch() {
  std::erase(watches, this);
  {
    const std::unique_lock lock(all_watches_mutex);
    std::erase(all_watches, this);
  }
  if (watches.empty()) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

}  // namespace tutti::training
