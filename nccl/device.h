// Where memory and streams of a GPU come in; the rest of this room only hands pointers and streams through. A call on
// device memory is the stream's; one on host memory is complete when it returns, whatever stream it names.
//
// Three things are asked of the CUDA driver, where the program has loaded it: nothing links to it, nor loads it.
#pragma once

#include <cstddef>

#include "nccl/abi.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// Returns the options of a call: its stream.
CallOptions options_of(cudaStream_t stream);
void send(Communicator& communicator, const void* buffer, std::size_t count, DataType type, int peer,
          cudaStream_t stream);
void recv(Communicator& communicator, void* buffer, std::size_t count, DataType type, int peer, cudaStream_t stream);

/// Whether the stream is another one on each thread, and the call is on device memory: then only the thread that made
/// the call may put it there.
bool is_of_this_thread(cudaStream_t stream, const void* send, const void* recv);

/// The device of this thread's CUDA context; 0 where it has none.
int current_device();

/// Lets a program's first call be a send or a receive on device memory: see Communicator::open_device(). Of `device`,
/// where Tutti has any. What is in the way of that, the first call on device memory says.
void open_memory(Communicator& communicator, int device) noexcept;

/// Memory that peers reach with no copy: the current device's, or the host's where Tutti has no device. Throws
/// tutti::Error.
void* allocate_buffer(std::size_t bytes);
void deallocate_buffer(void* pointer);

/// Copies `bytes` of a scalar to `to`. From device memory: as it is when what `stream` holds is done, for which this
/// waits. Throws tutti::Error (a stream that is being captured cannot be waited for).
void read_scalar(void* to, const void* scalar, std::size_t bytes, cudaStream_t stream);

}  // namespace tutti::nccl
