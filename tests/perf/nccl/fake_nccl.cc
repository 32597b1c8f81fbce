// A libnccl.so.2 that does what NVIDIA's 2.28 does and Tutti's own does not: it refuses memory that is not a GPU's, and
// two ranks on one GPU. The work itself is left to Tutti's own.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "device/driver.h"
#include "device/memory_kind.h"
#include "nccl/abi.h"

namespace tutti::nccl {
namespace {

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

template <class Function>
Function* ours(const char* name) {
  static void* const library = dlopen(TUTTI_NCCL_FILE, RTLD_NOW | RTLD_LOCAL);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    std::fprintf(stderr, "the fake NCCL: there is no %s in %s\n", name, TUTTI_NCCL_FILE);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

ncclResult_t refuse(ncclResult_t result, const std::string& text) {
  last_error() = text;
  return result;
}

bool on_gpu(const void* buffer) { return device::kind_of(buffer).on_device(); }

/// A file of the communicator and the GPU, which one rank can make.
class Claim {
 public:
  Claim(const ncclUniqueId& id, int gpu)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("fake_nccl_{:016x}_{}",
                          std::hash<std::string_view>{}(std::string_view(id.internal, sizeof(id.internal))), gpu)),
        file_(open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)) {}
  ~Claim() {
    if (file_ < 0) return;
    close(file_);
    unlink(path_.c_str());
  }
  bool granted() const { return file_ >= 0; }

 private:
  const std::filesystem::path path_;
  const int file_;
};

}  // namespace

#define OURS(name) ours<decltype(name)>(#name)
#define CHECK_MEMORY(name, count, buffer)                                                                   \
  if ((count) > 0 && (buffer) != nullptr && !on_gpu(buffer)) {                                              \
    return refuse(ncclInvalidArgument, #name ": " #buffer " is " + device::print(device::kind_of(buffer))); \
  }

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;  // one that refuses two ranks on one GPU
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) { return OURS(ncclGetErrorString)(result); }
const char* ncclGetLastError(ncclComm_t comm) {
  return last_error().empty() ? OURS(ncclGetLastError)(comm) : last_error().c_str();
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return OURS(ncclGetUniqueId)(id); }

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  const Result<int> current = device::current_device();
  if (!current.ok()) return refuse(ncclUnhandledCudaError, current.status().message());
  const int gpu = current.value() < 0 ? 0 : current.value();  // the CUDA runtime's default
  const Claim claim(id, gpu);
  if (!claim.granted()) {
    return refuse(ncclInvalidUsage,
                  fmt::format("Duplicate GPU: rank {} and another one are both on GPU {}", rank, gpu));
  }
  return OURS(ncclCommInitRank)(comm, size, id, rank);  // returns when all have come
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  return OURS(ncclCommSplit)(comm, color, key, made, config);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return OURS(ncclCommDestroy)(comm); }
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) { return OURS(ncclCommCount)(comm, count); }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) { return OURS(ncclCommUserRank)(comm, rank); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return OURS(ncclCommGetAsyncError)(comm, state);
}
ncclResult_t ncclGroupStart() { return OURS(ncclGroupStart)(); }
ncclResult_t ncclGroupEnd() { return OURS(ncclGroupEnd)(); }
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return OURS(ncclRedOpCreatePreMulSum)(op, scalar, type, residence, comm);
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) { return OURS(ncclRedOpDestroy)(op, comm); }

#define COLLECTIVE(name, parameters, arguments) \
  ncclResult_t name parameters {                \
    CHECK_MEMORY(name, count, send)             \
    CHECK_MEMORY(name, count, recv)             \
    return OURS(name) arguments;                \
  }
COLLECTIVE(ncclAllReduce,
           (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, op, comm, stream))
COLLECTIVE(ncclReduceScatter,
           (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, op, comm, stream))
COLLECTIVE(ncclReduce,
           (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, op, root, comm, stream))
COLLECTIVE(ncclAllGather,
           (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
           (send, recv, count, type, comm, stream))
COLLECTIVE(ncclBroadcast,
           (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, root, comm, stream))
COLLECTIVE(ncclAlltoAll,
           (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
           (send, recv, count, type, comm, stream))
COLLECTIVE(ncclGather,
           (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, root, comm, stream))
COLLECTIVE(ncclScatter,
           (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream),
           (send, recv, count, type, root, comm, stream))

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  CHECK_MEMORY(ncclSend, count, send)
  return OURS(ncclSend)(send, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  CHECK_MEMORY(ncclRecv, count, recv)
  return OURS(ncclRecv)(recv, count, type, peer, comm, stream);
}

}  // extern "C"

}  // namespace tutti::nccl
