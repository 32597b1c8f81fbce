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
 * Waiting for a whole device: what allocates, maps or frees memory of a GPU may wait for all that this process has
 *   under way there, in whatever streams, as cudaMalloc() and cudaFree() do: the first call on device memory, or
 *   tutti_comm_open_device(); tutti_allocate_device(), and tutti_free() of what it gave; a call on a buffer that peers
 *   in other processes have not mapped yet; the first send or receive of a larger size through the host's memory; and
 *   tutti_comm_destroy(). So no rank may do so while the kernel of another one that is a thread of this process, on the
 *   same GPU, waits for a call that the rank makes only later: both would wait until the deadline.
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

/* Where to meet, and the job's secret. Made on one rank and handed to the others by any means. */
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

/* How a communicator is made. A field left as TUTTI_OPTIONS_INIT sets it takes its value from the environment
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

/* What one call may ask for, beside its arguments. A null pointer in place of the struct: nothing. */
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

/* Rank, size and meeting place from torchrun's, Open MPI's, MPICH's or Slurm's environment; alone without any. Blocks
 * until all ranks have come; a rank that does not come within the timeout is named. */
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

/* Collective. Ranks that give the same colour form a new communicator, ordered by key, then rank. With a negative
 * colour *result becomes null. */
TUTTI_API tutti_status_t tutti_comm_split(tutti_comm_t comm, int color, int key, tutti_comm_t* result);
/* Makes ready for device memory, which the ranks' first collective call on it does otherwise: they open their GPUs'
 * memory to each other. All ranks call it. Where a send or a receive comes before either, messages on device memory go
 * through the host's from then on. `device`: this rank's GPU; -1: the calling thread's. After TUTTI_UNSUPPORTED or
 * TUTTI_MEMORY_LIMIT the communicator is as it was. */
TUTTI_API tutti_status_t tutti_comm_open_device(tutti_comm_t comm, int device);
/* The ranks that are still alive form a new communicator. Works after a failure; every survivor calls it. */
TUTTI_API tutti_status_t tutti_comm_shrink(tutti_comm_t comm, tutti_comm_t* result);
/* Ends all pending and future calls of this communicator on every rank; returns at once. Any thread. */
TUTTI_API tutti_status_t tutti_comm_abort(tutti_comm_t comm, const char* reason);
/* TUTTI_OK, or the failure that has ended this communicator, in a started or a stream's call too; tutti_last_error()
 * then holds its sentence. Any thread. */
TUTTI_API tutti_status_t tutti_comm_status(tutti_comm_t comm);

/* ---- Collectives ------------------------------------------------------------------------------------------------ */

/* `count` is in elements: of the vector (all_reduce, reduce, broadcast), of what each rank gives (all_gather, gather),
 * gets (reduce_scatter, scatter) or sends to each peer (all_to_all). In place: send == recv; for all_gather and gather
 * send == recv + rank * count, for reduce_scatter and scatter recv == send + rank * count (in elements). Any pointer
 * works; memory from tutti_allocate() is reached by the peers without a staging copy. A call on device memory is
 * ordered by the stream of its options and returns when it is enqueued. The buffers of one call are of one kind on all
 * ranks, and of each rank on one device, the same for all calls of its communicator. CUDA's managed memory counts as a
 * device's, its pinned memory as the host's. */
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
/* Elements and offsets, one per rank; what a rank sends to another is what that one receives from it. In place: send ==
 * recv, with the same counts and offsets both ways. */
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

/* The same with a tag of the caller's choice, not negative; without one it is 0. A receive takes the first message of
 * its tag from `peer`, or from anyone (TUTTI_ANY_SOURCE), and *source, unless null, becomes its sender. Messages of a
 * pair with the same tag keep their order. Count and type are those that were sent, else TUTTI_MISMATCH. A message of
 * another tag that came before is taken aside into memory of this rank's own (tutti_memory_t.messages), as long as the
 * memory limit leaves room; else this one waits until that has been received. */
#define TUTTI_ANY_SOURCE (-1)
TUTTI_API tutti_status_t tutti_send_tagged(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type,
                                           int peer, int tag);
TUTTI_API tutti_status_t tutti_recv_tagged(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                           int tag, int* source);

/* The same of device memory, without a tag, in the order of a stream (a cudaStream_t; null: the legacy default stream).
 * They return when they are enqueued. Host memory does not look at the stream. */
TUTTI_API tutti_status_t tutti_send_on(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                                       void* stream);
TUTTI_API tutti_status_t tutti_recv_on(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                       void* stream);

/* Between the two, sends and receives only note what is wanted; tutti_group_end() runs them together, in any order. So
 * do collectives on device memory (but not those that are started in the background): tutti_group_end() puts them into
 * their streams first, in their order, as few launches as can be. One that is wrong by itself lets none of the group
 * run. */
TUTTI_API tutti_status_t tutti_group_start(tutti_comm_t comm);
TUTTI_API tutti_status_t tutti_group_end(tutti_comm_t comm);

/* ---- The same in the background --------------------------------------------------------------------------------- */

/* Buffers, and the source of a receive, stay valid and untouched until the work is done; counts and offsets are copied.
 * What is wrong with a call is told by the call or by its work. Each *work is freed by tutti_work_free().
 * Collectives run on the communicator's own thread, in the order of the calls. Sends and receives (and groups of them)
 * progress independently of each other, in whatever order they can. A collective begins when all that was started
 * before it is done, and what is started after it begins when it is done. So does a blocking collective, while a
 * blocking send or receive joins those that are in progress. */
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
/* In place of tutti_group_end(): all messages of the group are one work. */
TUTTI_API tutti_status_t tutti_group_end_async(tutti_comm_t comm, tutti_work_t* work);

/* Until the operation is done or timeout_ms have passed (negative: no limit). Returns how the operation ended, or
 * TUTTI_RUNNING when it has not; it then goes on. */
TUTTI_API tutti_status_t tutti_work_wait(tutti_work_t work, int64_t timeout_ms);
/* *done becomes 1 when the operation has ended, well or badly, else 0. */
TUTTI_API tutti_status_t tutti_work_test(tutti_work_t work, int* done);
/* How the operation ended, or TUTTI_RUNNING. Does not set tutti_last_error(); tutti_work_wait() does. */
TUTTI_API tutti_status_t tutti_work_status(tutti_work_t work);
/* Frees the handle; does not wait, the operation goes on. Null is allowed. */
TUTTI_API void tutti_work_free(tutti_work_t work);

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Memory that peers reach directly: 64-byte aligned, page-aligned for large sizes, zero-filled. Any thread. */
TUTTI_API tutti_status_t tutti_allocate(size_t bytes, void** pointer);
/* Likewise of the calling thread's current device; 256-byte aligned. */
TUTTI_API tutti_status_t tutti_allocate_device(size_t bytes, void** pointer);
/* Of either; null is allowed. Device memory: waits for all that this process has under way on that device. */
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

/* The last calls of this rank and of the peers whose memory is reachable. */
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
