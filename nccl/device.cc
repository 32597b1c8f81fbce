#include "nccl/device.h"

#include <cstring>

namespace tutti::nccl {

CallOptions options_of(cudaStream_t) { return {}; }

void send(Communicator& communicator, const void* buffer, std::size_t count, DataType type, int peer, cudaStream_t) {
  communicator.send(buffer, count, type, peer);
}

void recv(Communicator& communicator, void* buffer, std::size_t count, DataType type, int peer, cudaStream_t) {
  communicator.recv(buffer, count, type, peer);
}

int current_device() { return 0; }

void* allocate_buffer(std::size_t bytes) { return allocate(bytes); }

void deallocate_buffer(void* pointer) { deallocate(pointer); }

void read_scalar(void* to, const void* scalar, std::size_t bytes) { std::memcpy(to, scalar, bytes); }

}  // namespace tutti::nccl
