// Where memory and streams of a GPU come in. The rest of this room only hands pointers and streams through.
//
// This build of Tutti works on host memory: a call is complete when it returns, so a stream has nothing to wait for.
#pragma once

#include <cstddef>

#include "nccl/abi.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// What a call asks for beside its arguments: its stream.
CallOptions options_of(cudaStream_t stream);
void send(Communicator& communicator, const void* buffer, std::size_t count, DataType type, int peer,
          cudaStream_t stream);
void recv(Communicator& communicator, void* buffer, std::size_t count, DataType type, int peer, cudaStream_t stream);

/// The device that a communicator made by this thread belongs to; 0 where there is none.
int current_device();

/// Memory that peers reach with no copy, where the program's buffers lie. Throws tutti::Error.
void* allocate_buffer(std::size_t bytes);
void deallocate_buffer(void* pointer);

/// Copies `bytes` of a scalar, which may lie in any kind of memory, to `to`.
void read_scalar(void* to, const void* scalar, std::size_t bytes);

}  // namespace tutti::nccl
