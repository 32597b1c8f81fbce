#include "transport/ucx/ucp.h"

#ifdef TUTTI_HAS_UCX

#include <dlfcn.h>
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <type_traits>

namespace tutti::ucx {

namespace {

constexpr unsigned kOldestMinor = 12;  // the first with all that the table names, as it is used here

struct Loaded {
  Status status;
  Ucp table;
};

/// Signals that libucs takes for its own when it is loaded (UCX_ERROR_SIGNALS, UCX_DEBUG_SIGNO).
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals; ++i) ::sigaction(kNumbers[i], nullptr, &kept_[i]);
  }
  ~KeptSignals() {
    if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) return;  // the user wants them
    for (std::size_t i = 0; i < kSignals; ++i) ::sigaction(kNumbers[i], &kept_[i], nullptr);
  }

 private:
  static constexpr int kNumbers[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP};
  static constexpr std::size_t kSignals = std::size(kNumbers);
  struct sigaction kept_[kSignals];
};

Status load(Ucp& table) {
  constexpr const char* kLibrary = "libucp.so.0";
  const bool ours = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) == nullptr;
  const KeptSignals kept;
  // Never closed: UCX has threads and hooks that stay until the process ends.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unsupported(fmt::format("UCX: this machine does not have it ({} cannot be loaded)", kLibrary));
  }
  void* words = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
  const auto find = [](void* from, const char* name, auto& function) -> Status {
    function =
        from == nullptr ? nullptr : reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(from, name));
    if (function != nullptr) return {};
    return unsupported(fmt::format("UCX: the library on this machine has no {}", name));
  };
  TUTTI_TRY(find(words, "ucs_status_string", table.status_string));
#define TUTTI_UCP_FIND(name) TUTTI_TRY(find(library, "ucp_" #name, table.name));
  TUTTI_UCP_FUNCTIONS(TUTTI_UCP_FIND)
#undef TUTTI_UCP_FIND
  unsigned major = 0, release = 0;
  table.get_version(&major, &table.minor, &release);
  if (major != 1 || table.minor < kOldestMinor) {
    return unsupported(fmt::format("UCX: version {}.{}.{} is on this machine, but 1.{} or a later 1.x is needed", major,
                                   table.minor, release, kOldestMinor));
  }
  ucs_status_t (*set_option)(const char*, const char*) = nullptr;
  if (ours && std::getenv("UCX_LOG_LEVEL") == nullptr && find(words, "ucs_global_opts_set_value", set_option).ok()) {
    (void)set_option("LOG_LEVEL", "fatal");
  }
  return {};
}

const Loaded& loaded() {
  static const Loaded once = [] {
    Loaded it;
    it.status = load(it.table);
    return it;
  }();
  return once;
}

}  // namespace

Result<const Ucp*> ucp() {
  if (!loaded().status.ok()) return loaded().status;
  return &loaded().table;
}

std::string words_of(ucs_status_t status) {
  return loaded().table.status_string != nullptr ? loaded().table.status_string(status)
                                                 : fmt::format("error {}", static_cast<int>(status));
}

Code code_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_EXCEEDS_LIMIT: return Code::memory_limit;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNREACHABLE: return Code::unsupported;
    default: return Code::system;
  }
}

Status check(ucs_status_t status, const std::string& call) {
  if (status == UCS_OK) return {};
  return {code_of(status), fmt::format("{} failed: {}", call, words_of(status))};
}

}  // namespace tutti::ucx

#endif
