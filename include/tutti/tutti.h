/* Tutti: collective communication between ranks (processes, or threads of one process). The C ABI.
 *
 *   tutti_comm_t comm;
 *   if (tutti_comm_create_from_environment(NULL, &comm) != TUTTI_OK) die(tutti_last_error());
 *   tutti_all_reduce(comm, data, data, count, TUTTI_F32, TUTTI_SUM, NULL);
 *   tutti_comm_destroy(comm);
 *
 * Errors: every function that can fail returns a tutti_status_t; tutti_last_error() then holds one sentence. No C++
 *   exception leaves a function of this header. Outputs are written only on TUTTI_OK.
 * Null: a null handle or a null required pointer gives TUTTI_INVALID_ARGUMENT.
 * Threads: one thread at a time may use a communicator (tutti_comm_abort excepted: any thread, any time). Different
 *   communicators are independent of each other.
 * Order: all ranks of a communicator make the same collective calls in the same order. A difference is detected and
 *   named on every rank (TUTTI_MISMATCH).
 * Waiting for a whole device: like cudaMalloc() and cudaFree(), these calls may wait for all work of this process on
 *   the GPU, in all streams: the first call on device memory, or tutti_comm_open_device(); tutti_allocate_device(), and
 *   tutti_free() of its memory; a call on a buffer that peers in other processes have not mapped yet; the first send or
 *   receive of a larger size that goes through host memory; and tutti_comm_destroy(). Where ranks are threads of one
 *   process and share a GPU, a rank must not make such a call while the kernel of another rank waits for a later call
 *   of this rank: both would wait until the deadline.
 * ABI: numbers of enumerators never change. Structs begin with their size, so that fields can be added at their end;
 *   initialise them with the ..._INIT macro. */
#ifndef TUTTI_TUTTI_H_
#define TUTTI_TUTTI_H_

#include <stddef.h>
#include <stdint.h>

#ifndef TUTTI_API
#if defined(TUTTI_BUILDING)
#define TUTTI_API __attribute__((visibility("default")))
#else
#define TUTTI_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* C lets an enum hold any int, so a wrong number may arrive and must be refused; C++ must be told so. */
#ifdef __cplusplus
#define TUTTI_INT : int
#else
#define TUTTI_INT
#endif

/* ---- Words ------------------------------------------------------------------------------------------------------ */

/* TUTTI_INVALID_ARGUMENT, TUTTI_UNSUPPORTED and TUTTI_MEMORY_LIMIT are found before anything is done, and the
 * communicator still works. After any other failure of a collective, a send or a receive it is finished: every pending
 * and future call on it fails with the same sentence. */
typedef enum tutti_status TUTTI_INT {
  TUTTI_RUNNING = -1, /* not a failure: an operation in flight is not done yet */
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1, /* the caller's mistake; nothing was done, the communicator still works */
  TUTTI_UNSUPPORTED = 2,      /* asked for something that this build or machine does not have */
  TUTTI_MISMATCH = 3,         /* ranks made different calls */
  TUTTI_TIMEOUT = 4,          /* a deadline passed */
  TUTTI_PEER_DIED = 5,        /* a rank of the communicator is gone */
  TUTTI_ABORTED = 6,          /* a rank aborted the communicator */
  TUTTI_SYSTEM = 7,           /* the operating system refused something */
  TUTTI_MEMORY_LIMIT = 8      /* a cap on memory would be passed, or there is no more memory */
} tutti_status_t;

typedef enum tutti_type TUTTI_INT {
  TUTTI_I8 = 0,
  TUTTI_U8 = 1,
  TUTTI_I32 = 2,
  TUTTI_U32 = 3,
  TUTTI_I64 = 4,
  TUTTI_U64 = 5,
  TUTTI_F16 = 6,
  TUTTI_BF16 = 7,
  TUTTI_F32 = 8,
  TUTTI_F64 = 9,
  TUTTI_F8E4M3 = 10,
  TUTTI_F8E5M2 = 11
} tutti_type_t;

typedef enum tutti_op TUTTI_INT {
  TUTTI_SUM = 0,
  TUTTI_PROD = 1,
  TUTTI_MIN = 2,
  TUTTI_MAX = 3,
  TUTTI_AVG = 4,        /* the sum divided by the number of ranks; integers truncate toward zero */
  TUTTI_PREMUL_SUM = 5, /* each rank's contribution is multiplied by its own factor first (tutti_call_options_t) */
  TUTTI_BAND = 6,       /* bitwise and, or, exclusive or: of integers only */
  TUTTI_BOR = 7,
  TUTTI_BXOR = 8
} tutti_op_t;

typedef struct tutti_comm* tutti_comm_t; /* one rank's end of a communicator */
typedef struct tutti_work* tutti_work_t; /* an operation in flight */

/* The address of rank 0 and the job's secret. Made on rank 0 and handed to the others by any means. */
typedef struct tutti_unique_id {
  char bytes[128];
} tutti_unique_id_t;

/* The failure of the last function of this header that failed on this thread; "" when none has. Never null; valid
 * until the next failure on this thread. */
TUTTI_API const char* tutti_last_error(void);
/* "peer died"; "unknown" for a number that is not a status. Static. */
TUTTI_API const char* tutti_status_name(tutti_status_t status);
/* "MAJOR.MINOR.PATCH" of the library that runs. Static. */
TUTTI_API const char* tutti_version(void);
/* Bytes of one element; 0 for a number that is not a type. */
TUTTI_API size_t tutti_size_of(tutti_type_t type);

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/* Options of a new communicator. A field left as TUTTI_OPTIONS_INIT sets it takes its value from the environment
 * (TUTTI_TIMEOUT, TUTTI_DETERMINISTIC, ...) or else the library's default. A null pointer in place of the struct does
 * so for all fields. Strings are copied. */
typedef struct tutti_options {
  size_t size;           /* sizeof(tutti_options_t) */
  int64_t timeout_ms;    /* deadline of every wait, creation included */
  int deterministic;     /* 1: same bits for every algorithm, lane count, placement and kind of memory */
  int64_t memory_limit;  /* bytes that this communicator may take per rank of each kind of memory (the host's, pinned,
                          * its GPU's), beside what tutti_allocate() gives; 0: no limit */
  const char* algorithm; /* force a row of the algorithm table where it can serve; "": the planner chooses */
  const char* backend;   /* "tutti", or a baseline: "openmpi", "mpich", "gloo" */
} tutti_options_t;
#define TUTTI_OPTIONS_INIT \
  { sizeof(tutti_options_t), -1, -1, -1, NULL, NULL }

/* Options of one call. A null pointer in place of the struct stands for the defaults. */
typedef struct tutti_call_options {
  size_t size;           /* sizeof(tutti_call_options_t) */
  int deterministic;     /* 1: as in tutti_options_t, for this call */
  double factor;         /* TUTTI_PREMUL_SUM: what this rank's contribution is multiplied by */
  const char* algorithm; /* rows of the algorithm table, with commas between: the first that can serve is taken;
                          * "auto" among them, or null: the planner chooses */
  void* stream;          /* of a call on device memory: a cudaStream_t; null: the legacy default stream;
                          * cudaStreamPerThread: that of the thread that makes the call, or that ends its group */
} tutti_call_options_t;
#define TUTTI_CALL_OPTIONS_INIT \
  { sizeof(tutti_call_options_t), 0, 1.0, NULL, NULL }

/* ---- Communicators ---------------------------------------------------------------------------------------------- */

/* Takes rank, size and rank 0's address from the environment of torchrun, Open MPI, MPICH or Slurm; without any of them
 * the communicator has one rank. Blocks until all ranks have come; names a rank that does not come within the timeout.
 */
TUTTI_API tutti_status_t tutti_comm_create_from_environment(const tutti_options_t* options, tutti_comm_t* comm);
TUTTI_API tutti_status_t tutti_make_unique_id(tutti_unique_id_t* id);
TUTTI_API tutti_status_t tutti_comm_create_from_unique_id(const tutti_unique_id_t* id, int rank, int size,
                                                          const tutti_options_t* options, tutti_comm_t* comm);
/* `size` ranks of this process; comms[r] becomes the communicator of rank r, to be used by a thread of its own. */
TUTTI_API tutti_status_t tutti_comm_create_in_process(int size, const tutti_options_t* options, tutti_comm_t* comms);
/* Frees the handle. Operations in flight keep what they need until they are done. Null is allowed. */
TUTTI_API void tutti_comm_destroy(tutti_comm_t comm);

TUTTI_API tutti_status_t tutti_comm_rank(tutti_comm_t comm, int* rank);
TUTTI_API tutti_status_t tutti_comm_size(tutti_comm_t comm, int* size);

/* Collective. *result becomes a new communicator of the ranks with the same colour, ordered by key, then rank; with a
 * negative colour it becomes null. */
TUTTI_API tutti_status_t tutti_comm_split(tutti_comm_t comm, int color, int key, tutti_comm_t* result);
/* The same, with a name that errors say: "rank 1 of group 'tp' (job rank 3, ...)". At most 64 printable ASCII
 * characters; null or "": as tutti_comm_split(). Ranks may give different names. */
TUTTI_API tutti_status_t tutti_comm_split_named(tutti_comm_t comm, int color, int key, const char* name,
                                                tutti_comm_t* result);
/* Prepares calls on device memory: the ranks map each other's GPU memory. Collective. The first collective on device
 * memory does this where it has not been called. If a send or receive on device memory comes first, all such messages
 * go through host memory from then on. `device`: this rank's GPU; -1: the calling thread's current one. After
 * TUTTI_UNSUPPORTED or TUTTI_MEMORY_LIMIT the communicator still works. */
TUTTI_API tutti_status_t tutti_comm_open_device(tutti_comm_t comm, int device);
/* *result becomes a new communicator of the ranks that are still alive. Every survivor calls it. Works after a failure.
 */
TUTTI_API tutti_status_t tutti_comm_shrink(tutti_comm_t comm, tutti_comm_t* result);
/* Ends all pending and future calls of this communicator on every rank; returns at once. Any thread. */
TUTTI_API tutti_status_t tutti_comm_abort(tutti_comm_t comm, const char* reason);
/* Returns TUTTI_OK, or the failure that has ended this communicator, which may have come from a background or stream
 * operation; tutti_last_error() then holds its sentence. Any thread. */
TUTTI_API tutti_status_t tutti_comm_status(tutti_comm_t comm);

/* ---- Collectives ------------------------------------------------------------------------------------------------ */

/* `count` is a number of elements: of the vector (all_reduce, reduce, broadcast), of each rank's input (all_gather,
 * gather), of each rank's output (reduce_scatter, scatter) or of the block for each peer (all_to_all). In place: send
 * == recv; for all_gather and gather send == recv + rank * count, for reduce_scatter and scatter recv == send + rank *
 * count (in elements). Any pointer works; peers reach memory from tutti_allocate() without a staging copy. A call on
 * device memory is ordered by the stream of its options and returns when it is enqueued. The buffers of one call are of
 * one kind on all ranks. A rank's buffers are on one device, the same for all calls of its communicator. CUDA's managed
 * memory counts as device memory, its pinned memory as host memory. */
TUTTI_API tutti_status_t tutti_all_reduce(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                          tutti_type_t type, tutti_op_t op, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_reduce_scatter(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                              tutti_type_t type, tutti_op_t op, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_all_gather(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                          tutti_type_t type, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_broadcast(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                         tutti_type_t type, int root, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_reduce(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                      tutti_op_t op, int root, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_all_to_all(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                          tutti_type_t type, const tutti_call_options_t* options);
/* Counts and offsets are in elements, one for each rank. The count that a rank sends to a peer must be the count that
 * the peer receives from it. In place: send == recv, with equal counts and offsets both ways. */
TUTTI_API tutti_status_t tutti_all_to_allv(tutti_comm_t comm, const void* send, const size_t* send_counts,
                                           const size_t* send_offsets, void* recv, const size_t* recv_counts,
                                           const size_t* recv_offsets, tutti_type_t type,
                                           const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_gather(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                      int root, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_scatter(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                       int root, const tutti_call_options_t* options);
TUTTI_API tutti_status_t tutti_barrier(tutti_comm_t comm);
TUTTI_API tutti_status_t tutti_send(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer);
TUTTI_API tutti_status_t tutti_recv(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer);

/* The same with a tag: any number from 0 on; the functions without one use 0. A receive takes the first message with
 * its tag from `peer`, or from any rank (TUTTI_ANY_SOURCE). *source, unless null, becomes its sender. Messages between
 * two ranks with the same tag keep their order. Count and type must be those of the send, else TUTTI_MISMATCH. An
 * earlier message with another tag is kept in this rank's memory (tutti_memory_t.messages) as long as the memory limit
 * leaves room; otherwise this receive waits until that message has been received. */
#define TUTTI_ANY_SOURCE (-1)
TUTTI_API tutti_status_t tutti_send_tagged(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type,
                                           int peer, int tag);
TUTTI_API tutti_status_t tutti_recv_tagged(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                           int tag, int* source);

/* The same for device memory, without a tag, in the order of a stream (a cudaStream_t; null: the legacy default
 * stream). They return when they are enqueued. With host memory the stream is ignored. */
TUTTI_API tutti_status_t tutti_send_on(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                                       void* stream);
TUTTI_API tutti_status_t tutti_recv_on(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                       void* stream);

/* Between the two, sends and receives are only recorded; tutti_group_end() runs them together, in any order. The same
 * holds for blocking collectives on device memory: tutti_group_end() enqueues them first, in their order, with as few
 * kernels as possible. If one call of the group has invalid arguments, none runs. */
TUTTI_API tutti_status_t tutti_group_start(tutti_comm_t comm);
TUTTI_API tutti_status_t tutti_group_end(tutti_comm_t comm);

/* ---- The same in the background --------------------------------------------------------------------------------- */

/* Buffers, and the source of a receive, must stay valid and untouched until the work is done; counts and offsets are
 * copied. An error is returned by the call or by its work. Each *work is freed by tutti_work_free(). Collectives run on
 * the communicator's own thread, in the order of the calls. Sends and receives (and groups of them) progress
 * independently of each other, in any order. A collective, also a blocking one, begins when all earlier operations are
 * done; later operations begin when it is done. A blocking send or receive joins those in progress. */
TUTTI_API tutti_status_t tutti_all_reduce_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                                tutti_type_t type, tutti_op_t op, const tutti_call_options_t* options,
                                                tutti_work_t* work);
TUTTI_API tutti_status_t tutti_reduce_scatter_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                                    tutti_type_t type, tutti_op_t op,
                                                    const tutti_call_options_t* options, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_all_gather_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                                tutti_type_t type, const tutti_call_options_t* options,
                                                tutti_work_t* work);
TUTTI_API tutti_status_t tutti_broadcast_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                               tutti_type_t type, int root, const tutti_call_options_t* options,
                                               tutti_work_t* work);
TUTTI_API tutti_status_t tutti_reduce_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                            tutti_type_t type, tutti_op_t op, int root,
                                            const tutti_call_options_t* options, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_all_to_all_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                                tutti_type_t type, const tutti_call_options_t* options,
                                                tutti_work_t* work);
TUTTI_API tutti_status_t tutti_all_to_allv_async(tutti_comm_t comm, const void* send, const size_t* send_counts,
                                                 const size_t* send_offsets, void* recv, const size_t* recv_counts,
                                                 const size_t* recv_offsets, tutti_type_t type,
                                                 const tutti_call_options_t* options, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_gather_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                            tutti_type_t type, int root, const tutti_call_options_t* options,
                                            tutti_work_t* work);
TUTTI_API tutti_status_t tutti_scatter_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                             tutti_type_t type, int root, const tutti_call_options_t* options,
                                             tutti_work_t* work);
TUTTI_API tutti_status_t tutti_barrier_async(tutti_comm_t comm, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_send_async(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type,
                                          int peer, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_recv_async(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                          tutti_work_t* work);
TUTTI_API tutti_status_t tutti_send_tagged_async(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type,
                                                 int peer, int tag, tutti_work_t* work);
TUTTI_API tutti_status_t tutti_recv_tagged_async(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type,
                                                 int peer, int tag, int* source, tutti_work_t* work);
/* Ends the group as tutti_group_end() does; the work is done when all its messages are. */
TUTTI_API tutti_status_t tutti_group_end_async(tutti_comm_t comm, tutti_work_t* work);

/* Waits until the operation is done or timeout_ms have passed (negative: no limit). Returns how the operation ended, or
 * TUTTI_RUNNING when it has not; it then goes on. */
TUTTI_API tutti_status_t tutti_work_wait(tutti_work_t work, int64_t timeout_ms);
/* *done becomes 1 when the operation has ended, with success or an error, else 0. */
TUTTI_API tutti_status_t tutti_work_test(tutti_work_t work, int* done);
/* Returns how the operation ended, or TUTTI_RUNNING. Does not set tutti_last_error(); tutti_work_wait() does. */
TUTTI_API tutti_status_t tutti_work_status(tutti_work_t work);
/* Frees the handle; does not wait, the operation goes on. Null is allowed. */
TUTTI_API void tutti_work_free(tutti_work_t work);

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Allocates host memory that peers reach directly: zero-filled, 64-byte aligned, large sizes page-aligned. Any thread.
 */
TUTTI_API tutti_status_t tutti_allocate(size_t bytes, void** pointer);
/* Allocates memory of the calling thread's current device; 256-byte aligned. Any thread. */
TUTTI_API tutti_status_t tutti_allocate_device(size_t bytes, void** pointer);
/* Frees memory of either; null is allowed. Device memory: waits for all work of this process on that device. */
TUTTI_API void tutti_free(void* pointer);

/* ---- Looking inside --------------------------------------------------------------------------------------------- */

typedef struct tutti_memory {
  size_t size;     /* sizeof(tutti_memory_t) */
  size_t scratch;  /* bytes of this rank's windows and slots in this communicator, in the host's memory and its GPU's,
                    * and of what waits to go to other hosts */
  size_t plans;    /* bytes of cached plans, estimated */
  size_t messages; /* bytes of messages kept for receives that have not come yet */
} tutti_memory_t;
#define TUTTI_MEMORY_INIT \
  { sizeof(tutti_memory_t), 0, 0, 0 }
TUTTI_API tutti_status_t tutti_comm_memory(tutti_comm_t comm, tutti_memory_t* memory);

typedef struct tutti_traffic { /* since the communicator was made */
  size_t size;                 /* sizeof(tutti_traffic_t) */
  uint64_t calls;
  uint64_t bytes_put; /* written to links (a peer's memory, or what a peer reads of ours) */
  uint64_t signals;
} tutti_traffic_t;
#define TUTTI_TRAFFIC_INIT \
  { sizeof(tutti_traffic_t), 0, 0, 0 }
TUTTI_API tutti_status_t tutti_comm_traffic(tutti_comm_t comm, tutti_traffic_t* traffic);

/* Texts go into the caller's buffer, cut to `capacity` and always ended by a zero byte (capacity 0: nothing is
 * written, buffer may be null). *length, unless null, becomes the length of the whole text without the zero byte. */

/* The last calls of this rank and of the peers on this host. */
TUTTI_API tutti_status_t tutti_comm_flight_recorder_text(tutti_comm_t comm, char* buffer, size_t capacity,
                                                         size_t* length);
TUTTI_API tutti_status_t tutti_comm_flight_recorder_json(tutti_comm_t comm, char* buffer, size_t capacity,
                                                         size_t* length);
/* Algorithm, lanes, rounds and the planner's reason, in one line. */
TUTTI_API tutti_status_t tutti_comm_explain_last_call(tutti_comm_t comm, char* buffer, size_t capacity, size_t* length);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TUTTI_TUTTI_H_ */
