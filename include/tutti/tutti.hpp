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
// Memory: any pointer works; memory from allocate() (or Buffer) is reached by the peers without a staging copy. Device
//   memory too: where a pointer points is asked of the driver, never guessed. The buffers of one call are of one kind
//   on all ranks, and of each rank on one device, the same for all calls of its communicator.
// Streams: a call on device memory is ordered by its stream, as a kernel is (cudaStreamPerThread: that of the thread
//   that makes the call, or ends its group). It returns when it has been enqueued (and so does the Work of an ..._async
//   form end); the buffers are the stream's until then. What goes wrong later is told by status(), by the calls that
//   follow, and by what the stream waits for.
// Waiting for a whole device: what allocates, maps or frees memory of a device may wait for all that this process has
//   under way there, in whatever streams, as cudaMalloc() and cudaFree() do: the first call on device memory, or
//   open_device(); allocate() and deallocate() of device memory; a call on a buffer that peers in other processes have
//   not mapped yet; the first send or receive of a larger size through the host's memory; and the end of a
//   communicator. So no rank may do so while the kernel of another one that is a thread of this process, on the same
//   device, waits for a call that the rank makes only later: both would wait until the deadline.
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

/// How a communicator is made. Each field has an environment name (TUTTI_TIMEOUT, ...; `tutti options` lists them) that
/// supplies the default.
struct TUTTI_API Options {
  Options();                          // defaults, then the environment
  std::chrono::milliseconds timeout;  // deadline of every wait, creation included
  bool deterministic;                 // same bits for every algorithm, lane count, placement and kind of memory
  std::size_t memory_limit;           // bytes that one communicator may take per rank of each kind of memory (the
                                      // host's, pinned, its GPU's), beside what allocate() gives; 0: no limit
  std::string algorithm;              // force a row of the algorithm table where it can serve; empty: planner chooses
  std::string backend;                // "tutti", or a baseline: "openmpi", "mpich", "gloo", "nccl"
  /// Asked some twenty times a second by a thread that waits inside a call of its own (not by that of started ones).
  /// True ends the call, and with it the communicator, on all ranks (Code::aborted): for a language's signals. Empty:
  /// never.
  std::function<bool()> interrupted;
};

/// 128 bytes that rank 0 makes and everybody else is given: where to meet, and the job's secret.
struct UniqueId {
  char bytes[128];
};

/// An operation in flight. Destroying it does not wait.
class TUTTI_API Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<PendingWork> state) : state_(std::move(state)) {}
  /// Until done; throws the operation's error. With a limit: false when it is not done by then (the operation goes on).
  void wait();
  bool wait(std::chrono::milliseconds limit);
  /// Done (well or badly)?
  bool test() const;
  /// Code::ok while running and when done well.
  Code status() const;
  /// Calls `callback` once, when done: with null when done well, else with the operation's error. On the thread that
  /// finishes the operation, which does the communicator's next one only after that: be brief, and use no communicator
  /// there. On this thread when it is done already. Must not throw.
  void then(std::function<void(const Error*)> callback) const;
  explicit operator bool() const { return state_ != nullptr; }

 private:
  std::shared_ptr<PendingWork> state_;
};

/// What a call may ask for, beside its arguments.
struct CallOptions {
  bool deterministic = false;
  double factor = 1.0;  // premul_sum
  /// Rows of the algorithm table, with commas between: the first that can serve is taken. "auto" among them, or an
  /// empty string: the planner chooses.
  std::string algorithm;
  Stream stream = nullptr;  // of a call on device memory
};

/// Why a call ran as it did.
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
  /// Rank, size and meeting place from torchrun's, Open MPI's, MPICH's or Slurm's environment; alone without any.
  static Communicator from_environment(const Options& options = {});
  static UniqueId make_unique_id();  // on one rank; hand it to the others by any means
  static Communicator from_unique_id(const UniqueId& id, int rank, int size, const Options& options = {});
  /// `size` ranks of one process, one Communicator for each thread.
  static std::vector<Communicator> in_process(int size, const Options& options = {});

  Communicator() = default;
  explicit Communicator(std::shared_ptr<CommunicatorInterface> impl) : impl_(std::move(impl)) {}
  explicit operator bool() const { return impl_ != nullptr; }

  int rank() const;
  int size() const;

  // Collectives. `count` is in elements: of the vector (all_reduce, reduce, broadcast), of what each rank gives
  // (all_gather, gather), gets (reduce_scatter, scatter) or sends to each peer (all_to_all). In place: send == recv;
  // for all_gather and gather send == recv + rank * count, for reduce_scatter and scatter recv == send + rank * count.
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
  /// Elements and offsets per rank; what a rank sends to another is what that one receives from it. In place: send ==
  /// recv, with the same counts and offsets both ways; else what is received lies apart from all other data of the
  /// call.
  void all_to_allv(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets, void* recv,
                   const std::size_t* recv_counts, const std::size_t* recv_offsets, DataType type,
                   const CallOptions& options = {});
  void gather(const void* send, void* recv, std::size_t count, DataType type, int root,
              const CallOptions& options = {});
  void scatter(const void* send, void* recv, std::size_t count, DataType type, int root,
               const CallOptions& options = {});
  void barrier();

  /// A message to `peer`, with a tag of the caller's choice (not negative). Returns when the buffer may be used again:
  /// a small message may be on its way then.
  void send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0, Stream stream = nullptr);
  /// The first message with this tag from `peer`, or from anyone (kAnySource); `*source` becomes its sender (null: not
  /// asked for). Messages of a pair with the same tag keep their order, and of several receives that want the same
  /// message the first gets it; whoever sends to receivers from any source has his turn. Count and type are those that
  /// were sent, else mismatch. A message of another tag that came before is taken aside into memory of this rank's own
  /// (MemoryReport::messages), as long as memory_limit leaves room; else this one waits until that has been received.
  /// On device memory: not from any source, and without tags (0).
  void recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0, int* source = nullptr,
            Stream stream = nullptr);

  /// Between the two, send and recv only note what is wanted; group_end() runs them together, in any order. So do
  /// collectives on device memory (but not those that are started in the background): group_end() puts them into their
  /// streams first, in their order, as few launches as can be. One that is wrong by itself lets none of the group run.
  /// What is received lies apart from the group's other buffers. (On device memory a message may be received into the
  /// very buffer of one that is sent, as programs of NCCL do; what then comes to the peer is undefined.)
  void group_start();
  void group_end();

  // The same in the background. Counts and offsets are copied; buffers, and recv's source, stay valid until the work is
  // done. Collectives run on the communicator's own thread in the order of the calls. Sends and receives (and groups of
  // them) progress independently of each other, in whatever order they can. A collective begins when all that was
  // started before it is done, and what is started after it begins when it is done. So does a blocking collective,
  // while a blocking send or receive joins those that are in progress.
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
  /// In place of group_end(): all messages of the group are one work.
  Work group_end_async();

  /// Ranks that give the same colour form a new communicator, ordered by key, then rank. A negative colour gets none.
  Communicator split(int color, int key) const;
  /// Makes ready for device memory, which the ranks' first collective call on it does otherwise: they open their GPUs'
  /// memory to each other. All ranks call it. Where a send or a receive comes before either, messages on device memory
  /// go through the host's from then on.
  /// `device`: this rank's GPU; -1: the calling thread's. Errors: unsupported, memory_limit; the communicator stays
  /// good.
  void open_device(int device = -1);
  /// The ranks that are still alive form a new communicator. Works after a failure.
  Communicator shrink() const;
  /// The deadline of this rank's waits from now on, those under way included. More than 0.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Ends all pending and future calls of this communicator on every rank; returns at once. Any thread.
  void abort(const std::string& reason);
  /// Code::ok, or the failure that has ended this communicator, in a started or a stream's call too; `text`, unless
  /// null, becomes its sentence. Any thread.
  Code status(std::string* text = nullptr) const;

  Explanation explain_last_call() const;
  MemoryReport memory() const;
  Traffic traffic() const;
  /// The last calls of this rank and of the peers whose memory is reachable.
  std::string flight_recorder_text() const;
  std::string flight_recorder_json() const;

  const std::shared_ptr<CommunicatorInterface>& impl() const { return impl_; }

 private:
  std::shared_ptr<CommunicatorInterface> impl_;
};

/// Whether this build, on this machine, communicates in memory of that kind. Any thread.
TUTTI_API bool supports(Memory memory) noexcept;

/// Memory that peers reach directly: the host's, or the calling thread's current device's. Page-aligned for large
/// sizes, 64-byte aligned always (256 on a device); zero-filled. Any thread. Errors: memory_limit; unsupported: no
/// device.
TUTTI_API void* allocate(std::size_t bytes, Memory memory = Memory::host);
/// Either kind; null is allowed. Device memory: waits for all that this process has under way on that device.
TUTTI_API void deallocate(void* pointer) noexcept;

/// Owns registered memory for `size` elements.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size)  // a product past size_t is more than there is, too
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
