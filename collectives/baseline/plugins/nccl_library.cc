#include "collectives/baseline/plugins/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "device/memory_kind.h"

namespace tutti {
namespace {

constexpr int kOldest = 22800;

Result<NcclLibrary> load() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // never closed: it keeps threads
  if (library == nullptr) {
    return unsupported(
        fmt::format("backend nccl: the library could not be opened ({}); expected it in a folder of "
                    "LD_LIBRARY_PATH",
                    dlerror()));
  }
  // The version first: an older one lacks some of the functions.
  NcclLibrary nccl;
  nccl.ncclGetVersion = reinterpret_cast<decltype(nccl.ncclGetVersion)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (nccl.ncclGetVersion == nullptr || nccl.ncclGetVersion(&version) != nccl::ncclSuccess || version < kOldest) {
    return unsupported(fmt::format("backend nccl: libnccl.so.2 is version {}.{}.{}; expected 2.28 or newer",
                                   version / 10000, version / 100 % 100, version % 100));
  }
  const char* missing = nullptr;
#define TUTTI_NCCL_FIND(name)                                               \
  nccl.name = reinterpret_cast<decltype(nccl.name)>(dlsym(library, #name)); \
  if (nccl.name == nullptr) missing = #name;
  TUTTI_NCCL_WANTED(TUTTI_NCCL_FIND)
#undef TUTTI_NCCL_FIND
  if (missing != nullptr) {
    return unsupported(fmt::format("backend nccl: libnccl.so.2 lacks {}; expected NCCL 2.28 or newer", missing));
  }
  nccl.takes_host_memory = dlsym(library, "tutti_nccl_version") != nullptr;
  const Status device = device::available();
  if (!nccl.takes_host_memory && !device.ok()) {
    return unsupported("backend nccl: NCCL works on GPU memory only: " + device.message());
  }
  return nccl;
}

}  // namespace

Status NcclLibrary::check(nccl::ncclResult_t result, int rank, const char* function) const {
  if (result == nccl::ncclSuccess) return {};
  const char* sentence = ncclGetLastError(nullptr);
  const std::string who = rank < 0 ? std::string() : fmt::format("rank {}: ", rank);
  return {Code::system, fmt::format("{}backend nccl: {}: {} ({})", who, function, ncclGetErrorString(result),
                                    sentence == nullptr ? "" : sentence)};
}

Result<const NcclLibrary*> nccl_library() {
  static const Result<NcclLibrary> library = load();
  if (!library.ok()) return library.status();
  return &library.value();
}

}  // namespace tutti
