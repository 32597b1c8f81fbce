// Tutti: collective communication between ranks (processes, or threads of one process). The C++ API.
//
//   tutti::Communicator comm = tutti::Communicator::from_environment();   // under mpirun, torchrun or srun
//   tutti::Buffer<float> data(1 << 20);                                   // registered: peers reach it with no copy
//   comm.all_reduce(data.data(), data.data(), data.size(), tutti::DataType::f32, tutti::ReduceOp::sum);
//
// Errors: every function throws tutti::Error; what() is one sentence that says who, which call and what was expected.
// Threads: a Communicator may be moved between threads, but one thread at a time may use it (abort() excepted: any
//   thread, any time). Different communicators are independent of each other.
// Order: all ranks of a communicator make the same collective calls in the same order. A difference is detected and
//   named on every rank.
// Memory: any pointer works, of host or device memory; the CUDA driver is asked which it is. Peers reach memory from
//   allocate() (or Buffer) without a staging copy. The buffers of one call are of one kind on all ranks. A rank's
//   buffers are on one device, the same for all calls of its communicator.
// Streams: a call on device memory is ordered by its stream, as a kernel is (cudaStreamPerThread: the stream of the
//   thread that makes the call, or ends its group). It returns when it has been enqueued; the Work of an ..._async form
//   is done then, too. The buffers belong to the stream until it has executed the call. status(), the calls that follow
//   and a wait for the stream report what fails later.
// Waiting for a whole device: like cudaMalloc() and cudaFree(), these calls may wait for all work of this process on
//   the device, in all streams: the first call on device memory, or open_device(); allocate() and deallocate() of
//   device memory; a call on a buffer that peers in other processes have not mapped yet; the first send or receive of a
//   larger size that goes through host memory; and the end of a communicator. Where ranks are threads of one process
//   and share a device, a rank must not make such a call while the kernel of another rank waits for a later call of
//   this rank: both would wait until the deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tutti/types.hpp"

#if defined(TUTTI_BUILDING)
#define TUTTI_API __attribute__((visibility("default")))
#else
#define TUTTI_API
#endif

namespace tutti {

class CommunicatorInterface;  // what is behind a Communicator (Tutti itself, or a baseline)
class PendingWork;

class TUTTI_API Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

/// Options of a new communicator. Each field has an environment name (TUTTI_TIMEOUT, ...; `tutti options` lists them)
/// that supplies the default.
struct TUTTI_API Options {
  Options();                          // defaults, then the environment
  std::chrono::milliseconds timeout;  // deadline of every wait, creation included
  bool deterministic;                 // same bits for every algorithm, lane count, placement and kind of memory
  std::size_t memory_limit;           // bytes that one communicator may take per rank of each kind of memory (the
                                      // host's, pinned, its GPU's), beside what allocate() gives; 0: no limit
  std::string algorithm;              // force a row of the algorithm table where it can serve; empty: planner chooses
  std::string backend;                // "tutti", or a baseline: "openmpi", "mpich", "gloo", "nccl"
  /// Serve errors only, where this communicator is a part of a job (from_unique_id). They then name its rank 1 as "rank
  /// 1 of group 'tp' (job rank 3, ...)". `name`: as in Communicator::split(). `job_ranks`: the job's rank of each rank,
  /// the same on all ranks; empty: this communicator is the job.
  std::string name;
  std::vector<int> job_ranks;
  /// Called about twenty times a second by a thread that waits inside a blocking call (not by the thread that runs the
  /// ..._async forms). Returning true aborts the communicator on all ranks (Code::aborted). Serves languages that
  /// handle signals themselves, such as Python. Empty: not called.
  std::function<bool()> interrupted;
};

/// The address of rank 0 and the job's secret: rank 0 makes it and hands it to all other ranks.
struct UniqueId {
  char bytes[128];
};

/// An operation in flight. Destroying it does not wait.
class TUTTI_API Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<PendingWork> state) : state_(std::move(state)) {}
  /// Waits until the operation is done; throws its error. With a limit: returns false when it is not done by then (the
  /// operation goes on).
  void wait();
  bool wait(std::chrono::milliseconds limit);
  /// Returns whether the operation has ended, with success or an error.
  bool test() const;
  /// Returns Code::ok while the operation runs and after success, else the code of its error.
  Code status() const;
  /// Calls `callback` once, when the operation has ended: with null after success, else with its error. The callback
  /// runs on the thread that finishes the operation, or on this thread when it is done already. The communicator's next
  /// operation waits for it, so it should be brief. It must not use a communicator and must not throw.
  void then(std::function<void(const Error*)> callback) const;
  explicit operator bool() const { return state_ != nullptr; }

 private:
  std::shared_ptr<PendingWork> state_;
};

/// Options of one call.
struct CallOptions {
  bool deterministic = false;
  double factor = 1.0;  // premul_sum
  /// Names of the algorithm table, separated by commas; the first that can serve is used. "auto", or an empty string:
  /// the planner chooses.
  std::string algorithm;
  Stream stream = nullptr;  // of a call on device memory
};

/// Which algorithm a call used, and the planner's reason.
struct Explanation {
  std::string algorithm;
  int lanes = 1;
  int rounds = 1;
  std::string reason;
};

struct MemoryReport {
  std::size_t scratch = 0;   // bytes of this rank's windows and slots in this communicator, in the host's memory and
                             // its GPU's, and of what waits to go to other hosts
  std::size_t plans = 0;     // cached plans, estimated
  std::size_t messages = 0;  // kept for receives that have not come yet (see send)
  std::size_t total() const { return scratch + plans + messages; }
};

struct Traffic {  // since the communicator was made
  std::uint64_t calls = 0;
  std::uint64_t bytes_put = 0;  // written to links (a peer's memory, or what a peer reads of ours)
  std::uint64_t signals = 0;
};

class TUTTI_API Communicator {
 public:
  /// Takes rank, size and rank 0's address from the environment of torchrun, Open MPI, MPICH or Slurm. Without any of
  /// them the communicator has one rank.
  static Communicator from_environment(const Options& options = {});
  static UniqueId make_unique_id();  // on one rank; hand it to the others by any means
  static Communicator from_unique_id(const UniqueId& id, int rank, int size, const Options& options = {});
  /// Returns `size` communicators, one for each rank; each rank is a thread of this process.
  static std::vector<Communicator> in_process(int size, const Options& options = {});

  Communicator() = default;
  explicit Communicator(std::shared_ptr<CommunicatorInterface> impl) : impl_(std::move(impl)) {}
  explicit operator bool() const { return impl_ != nullptr; }

  int rank() const;
  int size() const;

  // Collectives. `count` is a number of elements: of the vector (all_reduce, reduce, broadcast), of each rank's input
  // (all_gather, gather), of each rank's output (reduce_scatter, scatter) or of the block for each peer (all_to_all).
  // In place: send == recv; for all_gather and gather send == recv + rank * count, for reduce_scatter and scatter recv
  // == send + rank * count.
  void all_reduce(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
  void all_gather(const void* send, void* recv, std::size_t count, DataType type, const CallOptions& options = {});
  void broadcast(const void* send, void* recv, std::size_t count, DataType type, int root,
                 const CallOptions& options = {});
  void reduce(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op, int root,
              const CallOptions& options = {});
  void all_to_all(const void* send, void* recv, std::size_t count, DataType type, const CallOptions& options = {});
  /// Counts and offsets are in elements, one for each rank. The count that a rank sends to a peer must be the count
  /// that the peer receives from it. In place: send == recv, with equal counts and offsets both ways. Otherwise the
  /// received blocks must not overlap each other or what is sent.
  void all_to_allv(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets, void* recv,
                   const std::size_t* recv_counts, const std::size_t* recv_offsets, DataType type,
                   const CallOptions& options = {});
  void gather(const void* send, void* recv, std::size_t count, DataType type, int root,
              const CallOptions& options = {});
  void scatter(const void* send, void* recv, std::size_t count, DataType type, int root,
               const CallOptions& options = {});
  void barrier();

  /// Sends a message to `peer`; `tag`: any number from 0 on. Returns when the buffer may be used again, which for a
  /// small message may be before the peer has received it.
  void send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0, Stream stream = nullptr);
  /// Receives the first message with this tag from `peer`, or from any rank (kAnySource). `*source`, unless null,
  /// becomes its sender. Messages between two ranks with the same tag keep their order. A message that several receives
  /// match goes to the first of them; senders to kAnySource are served in turn. Count and type must be those of the
  /// send (Errors: mismatch). An earlier message with another tag is kept in this rank's memory
  /// (MemoryReport::messages) as long as memory_limit leaves room; otherwise this receive waits until that message has
  /// been received. Messages of device memory have tag 0 and a named peer.
  void recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, int* source = nullptr,
            Stream stream = nullptr);

  /// Between the two, send and recv are only recorded; group_end() runs them together, in any order. The same holds for
  /// blocking collectives on device memory: group_end() enqueues them first, in their order, with as few kernels as
  /// possible. If one call of the group has invalid arguments, none runs. Receive buffers must not overlap other
  /// buffers of the group. (In device memory a receive may use the buffer of a send, as some NCCL programs do; the peer
  /// then receives undefined data.)
  void group_start();
  void group_end();

  // The same in the background. Counts and offsets are copied; buffers, and recv's source, must stay valid until the
  // work is done. Collectives run on the communicator's own thread, in the order of the calls. Sends and receives (and
  // groups of them) progress independently of each other, in any order. A collective, also a blocking one, begins when
  // all earlier operations are done; later operations begin when it is done. A blocking send or receive joins those in
  // progress.
  Work all_reduce_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {});
  Work reduce_scatter_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {});
  Work all_gather_async(const void* send, void* recv, std::size_t count, DataType type,
                        const CallOptions& options = {});
  Work broadcast_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                       const CallOptions& options = {});
  Work reduce_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op, int root,
                    const CallOptions& options = {});
  Work all_to_all_async(const void* send, void* recv, std::size_t count, DataType type,
                        const CallOptions& options = {});
  Work all_to_allv_async(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets, void* recv,
                         const std::size_t* recv_counts, const std::size_t* recv_offsets, DataType type,
                         const CallOptions& options = {});
  Work gather_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                    const CallOptions& options = {});
  Work scatter_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                     const CallOptions& options = {});
  Work barrier_async();
  Work send_async(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0, Stream stream = nullptr);
  Work recv_async(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, int* source = nullptr,
                  Stream stream = nullptr);
  /// Ends the group as group_end() does; the Work is done when all its messages are.
  Work group_end_async();

  /// Returns a new communicator of the ranks with the same colour, ordered by key, then rank; with a negative colour an
  /// empty one. Collective. `name`: at most 64 printable ASCII characters, which errors say: "rank 1 of group 'tp' (job
  /// rank 3, ...)". Ranks may give different ones. Without a name: "a group"; a copy of all ranks in their order keeps
  /// the name of its parent. Errors: invalid_argument (the name; no other rank learns of it).
  Communicator split(int color, int key, const std::string& name = {}) const;
  /// Prepares calls on device memory: the ranks map each other's GPU memory. Collective. The first collective on device
  /// memory does this where it has not been called. If a send or receive on device memory comes first, all such
  /// messages go through host memory from then on. `device`: this rank's GPU; -1: the calling thread's current one.
  /// Errors: unsupported, memory_limit; the communicator still works then.
  void open_device(int device = -1);
  /// Returns a new communicator of the ranks that are still alive; every survivor calls it. Works after a failure. It
  /// keeps the name.
  Communicator shrink() const;
  /// Sets the deadline of this rank's waits, those in progress included. REQUIRES: timeout > 0.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Ends all pending and future calls of this communicator on every rank; returns at once. Any thread.
  void abort(const std::string& reason);
  /// Returns Code::ok, or the failure that has ended this communicator, which may have come from a background or stream
  /// operation. `text`, unless null, becomes its sentence. Any thread.
  Code status(std::string* text = nullptr) const;

  /// Returns why the last collective call ran as it did; messages leave that. Empty before the first call, and after
  /// one of no elements.
  Explanation explain_last_call() const;
  MemoryReport memory() const;
  Traffic traffic() const;
  /// Returns the last calls of this rank and of the peers on this host.
  std::string flight_recorder_text() const;
  std::string flight_recorder_json() const;

  const std::shared_ptr<CommunicatorInterface>& impl() const { return impl_; }

 private:
  std::shared_ptr<CommunicatorInterface> impl_;
};

/// Returns whether this build can communicate in memory of that kind on this machine. Any thread.
TUTTI_API bool supports(Memory memory) noexcept;

/// Allocates memory that peers reach directly: host memory, or memory of the calling thread's current device. It is
/// zero-filled and aligned to 64 bytes (256 on a device; large sizes to pages). Any thread. Errors: memory_limit,
/// unsupported (no device).
TUTTI_API void* allocate(std::size_t bytes, Memory memory = Memory::host);
/// Frees memory of allocate(); null is allowed. Device memory: waits for all work of this process on that device.
TUTTI_API void deallocate(void* pointer) noexcept;

/// Owns registered memory for `size` elements.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size)  // a product past size_t fails as too large, too
      : data_(static_cast<T*>(allocate(size > SIZE_MAX / sizeof(T) ? SIZE_MAX : size * sizeof(T)))), size_(size) {}
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }

 private:
  struct Release {
    void operator()(T* p) const noexcept { deallocate(p); }
  };
  std::unique_ptr<T, Release> data_;
  std::size_t size_ = 0;
};

/// "MAJOR.MINOR.PATCH" of the library that runs.
TUTTI_API const char* version();

}  // namespace tutti
