// The C ABI (tutti.h) on top of the C++ API: translates words, handles and failures, decides nothing.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/api/c_api_values.h"
#include "collectives/call.h"
#include "collectives/communicator_interface.h"
#include "tutti/tutti.h"
#include "tutti/tutti.hpp"

struct tutti_comm {
  tutti::Communicator comm;
};

struct tutti_work {
  tutti::Work work;
};

namespace {

using tutti::Call;
using tutti::Code;
using tutti::Collective;
using tutti::Communicator;
using tutti::DataType;
using tutti::Error;
using tutti::Memory;
using tutti::ReduceOp;
using tutti::Status;

// A plain array, so that keeping the text of a failure can not itself fail.
thread_local char last_error[2048] = "";

tutti_status_t fail(Code code, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), sizeof(last_error) - 1);
  std::memcpy(last_error, text.data(), length);
  last_error[length] = '\0';
  return static_cast<tutti_status_t>(code);
}

tutti_status_t outcome(const Status& status) noexcept {
  return status.ok() ? TUTTI_OK : fail(status.code(), status.message());
}

/// Runs `body`; an exception becomes a code and the last error.
template <class Body>
tutti_status_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Code::memory_limit, "tutti: the process has no more memory");
  } catch (const std::exception& error) {
    return fail(Code::system, error.what());
  } catch (...) {
    return fail(Code::system, "tutti: an exception of an unknown type");
  }
}

void expect(bool condition, const char* what) {
  if (!condition) throw Error(Code::invalid_argument, what);
}

Communicator& communicator_of(tutti_comm_t comm) {
  expect(comm != nullptr, "tutti: the communicator is null");
  return comm->comm;
}

tutti::Options options_from(const tutti_options_t* given) {
  tutti::Options options;
  if (given == nullptr) return options;
  expect(given->size == sizeof(tutti_options_t),
         "tutti: options.size is not sizeof(tutti_options_t); initialise with TUTTI_OPTIONS_INIT");
  if (given->timeout_ms >= 0) options.timeout = std::chrono::milliseconds(given->timeout_ms);
  if (given->deterministic >= 0) options.deterministic = given->deterministic != 0;
  if (given->memory_limit >= 0) options.memory_limit = static_cast<std::size_t>(given->memory_limit);
  if (given->algorithm != nullptr) options.algorithm = given->algorithm;
  if (given->backend != nullptr) options.backend = given->backend;
  return options;
}

/// REQUIRES: the strings that `call` points to outlive the call; options->algorithm does, it is the caller's.
void add_options(const tutti_call_options_t* given, Call& call) {
  if (given == nullptr) return;
  // The first version of the struct ended before `stream`.
  expect(given->size == sizeof(tutti_call_options_t) || given->size == offsetof(tutti_call_options_t, stream),
         "tutti: options.size of a call is not sizeof(tutti_call_options_t); initialise with TUTTI_CALL_OPTIONS_INIT");
  call.deterministic = given->deterministic != 0;
  call.factor = given->factor;
  if (given->algorithm != nullptr) call.algorithm = given->algorithm;
  if (given->size == sizeof(tutti_call_options_t)) call.stream = given->stream;
}

tutti_status_t allocate(size_t bytes, Memory memory, void** pointer) noexcept {
  return guarded([&] {
    expect(pointer != nullptr, "tutti: the place for the pointer is null");
    *pointer = tutti::allocate(bytes, memory);
    return TUTTI_OK;
  });
}

DataType type_from(tutti_type_t type) {
  expect(type >= 0 && type < tutti::kDataTypes, "tutti: the element type is not a tutti_type_t");
  return static_cast<DataType>(type);
}

ReduceOp op_from(tutti_op_t op) {
  expect(op >= 0 && op < tutti::kReduceOps, "tutti: the reduction is not a tutti_op_t");
  return static_cast<ReduceOp>(op);
}

/// The arguments of a C function, converted to the library's types.
struct Arguments {
  Collective collective;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  tutti_type_t type = TUTTI_U8;
  tutti_op_t op = TUTTI_SUM;
  int root = 0;
  const tutti_call_options_t* options = nullptr;
};

Call call_from(const Arguments& arguments) {
  Call call;
  call.collective = arguments.collective;
  call.send = arguments.send;
  call.recv = arguments.recv;
  call.count = arguments.count;
  call.type = type_from(arguments.type);
  call.op = op_from(arguments.op);
  call.root = arguments.root;
  add_options(arguments.options, call);
  return call;
}

Call call_from_v(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets, void* recv,
                 const std::size_t* recv_counts, const std::size_t* recv_offsets, tutti_type_t type,
                 const tutti_call_options_t* options) {
  Call call =
      call_from({.collective = Collective::all_to_allv, .send = send, .recv = recv, .type = type, .options = options});
  expect(send_counts != nullptr && send_offsets != nullptr && recv_counts != nullptr && recv_offsets != nullptr,
         "tutti: all_to_allv: an array of counts or offsets is null");
  call.send_counts = send_counts;
  call.send_offsets = send_offsets;
  call.recv_counts = recv_counts;
  call.recv_offsets = recv_offsets;
  return call;
}

tutti_status_t run(tutti_comm_t comm, const Arguments& arguments) noexcept {
  return guarded([&] { return outcome(communicator_of(comm).impl()->run(call_from(arguments))); });
}

tutti_status_t hand_out(tutti::Work work, tutti_work_t* result) {
  *result = new tutti_work{std::move(work)};
  return TUTTI_OK;
}

tutti_status_t start(tutti_comm_t comm, const Call& call, tutti_work_t* result) {
  expect(result != nullptr, "tutti: the place for the work is null");
  auto pending = communicator_of(comm).impl()->start(call);
  if (!pending.ok()) return outcome(pending.status());
  return hand_out(tutti::Work(pending.take()), result);
}

tutti_status_t start(tutti_comm_t comm, const Arguments& arguments, tutti_work_t* result) noexcept {
  return guarded([&] { return start(comm, call_from(arguments), result); });
}

tutti_status_t hand_out(Communicator comm, tutti_comm_t* result) {
  *result = comm ? new tutti_comm{std::move(comm)} : nullptr;
  return TUTTI_OK;
}

tutti_status_t copy_out(const std::string& text, char* buffer, std::size_t capacity, std::size_t* length) {
  expect(capacity == 0 || buffer != nullptr, "tutti: the buffer for a text is null");
  if (length != nullptr) *length = text.size();
  if (capacity == 0) return TUTTI_OK;
  const std::size_t bytes = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), bytes);
  buffer[bytes] = '\0';
  return TUTTI_OK;
}

}  // namespace

extern "C" {

const char* tutti_last_error(void) { return last_error; }

const char* tutti_status_name(tutti_status_t status) {
  if (status == TUTTI_RUNNING) return "running";
  if (status < TUTTI_OK || status > TUTTI_MEMORY_LIMIT) return "unknown";
  return tutti::name_of(static_cast<Code>(status));
}

const char* tutti_version(void) { return tutti::version(); }

size_t tutti_size_of(tutti_type_t type) {
  return type >= 0 && type < tutti::kDataTypes ? tutti::size_of(static_cast<DataType>(type)) : 0;
}

tutti_status_t tutti_comm_create_from_environment(const tutti_options_t* options, tutti_comm_t* comm) {
  return guarded([&] {
    expect(comm != nullptr, "tutti: the place for the communicator is null");
    return hand_out(Communicator::from_environment(options_from(options)), comm);
  });
}

tutti_status_t tutti_make_unique_id(tutti_unique_id_t* id) {
  return guarded([&] {
    expect(id != nullptr, "tutti: the place for the unique id is null");
    const tutti::UniqueId made = Communicator::make_unique_id();
    std::memcpy(id->bytes, made.bytes, sizeof(id->bytes));
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_create_from_unique_id(const tutti_unique_id_t* id, int rank, int size,
                                                const tutti_options_t* options, tutti_comm_t* comm) {
  return guarded([&] {
    expect(id != nullptr, "tutti: the unique id is null");
    expect(comm != nullptr, "tutti: the place for the communicator is null");
    tutti::UniqueId copy{};
    std::memcpy(copy.bytes, id->bytes, sizeof(copy.bytes));
    return hand_out(Communicator::from_unique_id(copy, rank, size, options_from(options)), comm);
  });
}

tutti_status_t tutti_comm_create_in_process(int size, const tutti_options_t* options, tutti_comm_t* comms) {
  return guarded([&] {
    expect(comms != nullptr, "tutti: the array for the communicators is null");
    std::vector<Communicator> made = Communicator::in_process(size, options_from(options));
    // All handles exist before the first is handed out: outputs are written only on success.
    std::vector<std::unique_ptr<tutti_comm>> handles;
    for (Communicator& comm : made) handles.emplace_back(new tutti_comm{std::move(comm)});
    for (std::size_t rank = 0; rank < handles.size(); ++rank) comms[rank] = handles[rank].release();
    return TUTTI_OK;
  });
}

void tutti_comm_destroy(tutti_comm_t comm) {
  guarded([&] {
    delete comm;
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_rank(tutti_comm_t comm, int* rank) {
  return guarded([&] {
    expect(rank != nullptr, "tutti: the place for the rank is null");
    *rank = communicator_of(comm).rank();
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_size(tutti_comm_t comm, int* size) {
  return guarded([&] {
    expect(size != nullptr, "tutti: the place for the size is null");
    *size = communicator_of(comm).size();
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_split(tutti_comm_t comm, int color, int key, tutti_comm_t* result) {
  return tutti_comm_split_named(comm, color, key, nullptr, result);
}

tutti_status_t tutti_comm_split_named(tutti_comm_t comm, int color, int key, const char* name, tutti_comm_t* result) {
  return guarded([&] {
    expect(result != nullptr, "tutti: the place for the communicator is null");
    return hand_out(communicator_of(comm).split(color, key, name == nullptr ? "" : name), result);
  });
}

tutti_status_t tutti_comm_open_device(tutti_comm_t comm, int device) {
  return guarded([&] {
    communicator_of(comm).open_device(device);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_shrink(tutti_comm_t comm, tutti_comm_t* result) {
  return guarded([&] {
    expect(result != nullptr, "tutti: the place for the communicator is null");
    return hand_out(communicator_of(comm).shrink(), result);
  });
}

tutti_status_t tutti_comm_abort(tutti_comm_t comm, const char* reason) {
  return guarded([&] {
    communicator_of(comm).abort(reason == nullptr ? "" : reason);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_status(tutti_comm_t comm) {
  return guarded([&] {
    std::string text;
    const Code code = communicator_of(comm).status(&text);
    return code == Code::ok ? TUTTI_OK : fail(code, text);
  });
}

tutti_status_t tutti_all_reduce(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                tutti_op_t op, const tutti_call_options_t* options) {
  return run(comm, {Collective::all_reduce, send, recv, count, type, op, 0, options});
}

tutti_status_t tutti_reduce_scatter(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                    tutti_op_t op, const tutti_call_options_t* options) {
  return run(comm, {Collective::reduce_scatter, send, recv, count, type, op, 0, options});
}

tutti_status_t tutti_all_gather(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                const tutti_call_options_t* options) {
  return run(comm, {Collective::all_gather, send, recv, count, type, TUTTI_SUM, 0, options});
}

tutti_status_t tutti_broadcast(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                               int root, const tutti_call_options_t* options) {
  return run(comm, {Collective::broadcast, send, recv, count, type, TUTTI_SUM, root, options});
}

tutti_status_t tutti_reduce(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                            tutti_op_t op, int root, const tutti_call_options_t* options) {
  return run(comm, {Collective::reduce, send, recv, count, type, op, root, options});
}

tutti_status_t tutti_all_to_all(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                const tutti_call_options_t* options) {
  return run(comm, {Collective::all_to_all, send, recv, count, type, TUTTI_SUM, 0, options});
}

tutti_status_t tutti_all_to_allv(tutti_comm_t comm, const void* send, const size_t* send_counts,
                                 const size_t* send_offsets, void* recv, const size_t* recv_counts,
                                 const size_t* recv_offsets, tutti_type_t type, const tutti_call_options_t* options) {
  return guarded([&] {
    return outcome(communicator_of(comm).impl()->run(
        call_from_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, options)));
  });
}

tutti_status_t tutti_gather(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type, int root,
                            const tutti_call_options_t* options) {
  return run(comm, {Collective::gather, send, recv, count, type, TUTTI_SUM, root, options});
}

tutti_status_t tutti_scatter(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type, int root,
                             const tutti_call_options_t* options) {
  return run(comm, {Collective::scatter, send, recv, count, type, TUTTI_SUM, root, options});
}

tutti_status_t tutti_barrier(tutti_comm_t comm) { return run(comm, {Collective::barrier}); }

tutti_status_t tutti_send(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer) {
  return tutti_send_tagged(comm, buffer, count, type, peer, 0);
}

tutti_status_t tutti_recv(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer) {
  return tutti_recv_tagged(comm, buffer, count, type, peer, 0, nullptr);
}

tutti_status_t tutti_send_tagged(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                                 int tag) {
  return guarded([&] {
    communicator_of(comm).send(buffer, count, type_from(type), peer, tag);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_recv_tagged(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer, int tag,
                                 int* source) {
  return guarded([&] {
    communicator_of(comm).recv(buffer, count, type_from(type), peer, tag, source);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_send_on(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                             void* stream) {
  return guarded([&] {
    communicator_of(comm).send(buffer, count, type_from(type), peer, 0, stream);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_recv_on(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer, void* stream) {
  return guarded([&] {
    communicator_of(comm).recv(buffer, count, type_from(type), peer, 0, nullptr, stream);
    return TUTTI_OK;
  });
}

tutti_status_t tutti_group_start(tutti_comm_t comm) {
  return guarded([&] {
    communicator_of(comm).group_start();
    return TUTTI_OK;
  });
}

tutti_status_t tutti_group_end(tutti_comm_t comm) {
  return guarded([&] {
    communicator_of(comm).group_end();
    return TUTTI_OK;
  });
}

tutti_status_t tutti_all_reduce_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                      tutti_op_t op, const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::all_reduce, send, recv, count, type, op, 0, options}, work);
}

tutti_status_t tutti_reduce_scatter_async(tutti_comm_t comm, const void* send, void* recv, size_t count,
                                          tutti_type_t type, tutti_op_t op, const tutti_call_options_t* options,
                                          tutti_work_t* work) {
  return start(comm, {Collective::reduce_scatter, send, recv, count, type, op, 0, options}, work);
}

tutti_status_t tutti_all_gather_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                      const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::all_gather, send, recv, count, type, TUTTI_SUM, 0, options}, work);
}

tutti_status_t tutti_broadcast_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                     int root, const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::broadcast, send, recv, count, type, TUTTI_SUM, root, options}, work);
}

tutti_status_t tutti_reduce_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                  tutti_op_t op, int root, const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::reduce, send, recv, count, type, op, root, options}, work);
}

tutti_status_t tutti_all_to_all_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                      const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::all_to_all, send, recv, count, type, TUTTI_SUM, 0, options}, work);
}

tutti_status_t tutti_all_to_allv_async(tutti_comm_t comm, const void* send, const size_t* send_counts,
                                       const size_t* send_offsets, void* recv, const size_t* recv_counts,
                                       const size_t* recv_offsets, tutti_type_t type,
                                       const tutti_call_options_t* options, tutti_work_t* work) {
  return guarded([&] {
    return start(comm, call_from_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, options),
                 work);
  });
}

tutti_status_t tutti_gather_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                  int root, const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::gather, send, recv, count, type, TUTTI_SUM, root, options}, work);
}

tutti_status_t tutti_scatter_async(tutti_comm_t comm, const void* send, void* recv, size_t count, tutti_type_t type,
                                   int root, const tutti_call_options_t* options, tutti_work_t* work) {
  return start(comm, {Collective::scatter, send, recv, count, type, TUTTI_SUM, root, options}, work);
}

tutti_status_t tutti_barrier_async(tutti_comm_t comm, tutti_work_t* work) {
  return start(comm, Arguments{Collective::barrier}, work);
}

tutti_status_t tutti_send_async(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                                tutti_work_t* work) {
  return tutti_send_tagged_async(comm, buffer, count, type, peer, 0, work);
}

tutti_status_t tutti_recv_async(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                tutti_work_t* work) {
  return tutti_recv_tagged_async(comm, buffer, count, type, peer, 0, nullptr, work);
}

tutti_status_t tutti_send_tagged_async(tutti_comm_t comm, const void* buffer, size_t count, tutti_type_t type, int peer,
                                       int tag, tutti_work_t* work) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the place for the work is null");
    return hand_out(communicator_of(comm).send_async(buffer, count, type_from(type), peer, tag), work);
  });
}

tutti_status_t tutti_recv_tagged_async(tutti_comm_t comm, void* buffer, size_t count, tutti_type_t type, int peer,
                                       int tag, int* source, tutti_work_t* work) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the place for the work is null");
    return hand_out(communicator_of(comm).recv_async(buffer, count, type_from(type), peer, tag, source), work);
  });
}

tutti_status_t tutti_group_end_async(tutti_comm_t comm, tutti_work_t* work) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the place for the work is null");
    return hand_out(communicator_of(comm).group_end_async(), work);
  });
}

tutti_status_t tutti_work_wait(tutti_work_t work, int64_t timeout_ms) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the work is null");
    if (timeout_ms >= 0 && !work->work.wait(std::chrono::milliseconds(timeout_ms))) return TUTTI_RUNNING;
    work->work.wait();  // throws the operation's failure
    return TUTTI_OK;
  });
}

tutti_status_t tutti_work_test(tutti_work_t work, int* done) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the work is null");
    expect(done != nullptr, "tutti: the place for the answer is null");
    *done = work->work.test() ? 1 : 0;
    return TUTTI_OK;
  });
}

tutti_status_t tutti_work_status(tutti_work_t work) {
  return guarded([&] {
    expect(work != nullptr, "tutti: the work is null");
    if (!work->work.test()) return TUTTI_RUNNING;
    return static_cast<tutti_status_t>(work->work.status());
  });
}

void tutti_work_free(tutti_work_t work) {
  guarded([&] {
    delete work;
    return TUTTI_OK;
  });
}

tutti_status_t tutti_allocate(size_t bytes, void** pointer) { return allocate(bytes, Memory::host, pointer); }

tutti_status_t tutti_allocate_device(size_t bytes, void** pointer) { return allocate(bytes, Memory::device, pointer); }

void tutti_free(void* pointer) { tutti::deallocate(pointer); }

tutti_status_t tutti_comm_memory(tutti_comm_t comm, tutti_memory_t* memory) {
  return guarded([&] {
    // The first version of the struct ended before `messages`.
    expect(memory != nullptr &&
               (memory->size == sizeof(tutti_memory_t) || memory->size == offsetof(tutti_memory_t, messages)),
           "tutti: memory is null or not initialised with TUTTI_MEMORY_INIT");
    const tutti::MemoryReport report = communicator_of(comm).memory();
    memory->scratch = report.scratch;
    memory->plans = report.plans;
    if (memory->size == sizeof(tutti_memory_t)) memory->messages = report.messages;
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_traffic(tutti_comm_t comm, tutti_traffic_t* traffic) {
  return guarded([&] {
    expect(traffic != nullptr && traffic->size == sizeof(tutti_traffic_t),
           "tutti: traffic is null or not initialised with TUTTI_TRAFFIC_INIT");
    const tutti::Traffic report = communicator_of(comm).traffic();
    traffic->calls = report.calls;
    traffic->bytes_put = report.bytes_put;
    traffic->signals = report.signals;
    return TUTTI_OK;
  });
}

tutti_status_t tutti_comm_flight_recorder_text(tutti_comm_t comm, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { return copy_out(communicator_of(comm).flight_recorder_text(), buffer, capacity, length); });
}

tutti_status_t tutti_comm_flight_recorder_json(tutti_comm_t comm, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { return copy_out(communicator_of(comm).flight_recorder_json(), buffer, capacity, length); });
}

tutti_status_t tutti_comm_explain_last_call(tutti_comm_t comm, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] {
    const tutti::Explanation explanation = communicator_of(comm).explain_last_call();
    const std::string text = explanation.algorithm + ", " + std::to_string(explanation.lanes) + " lanes, " +
                             std::to_string(explanation.rounds) + " rounds: " + explanation.reason;
    return copy_out(text, buffer, capacity, length);
  });
}

}  // extern "C"
