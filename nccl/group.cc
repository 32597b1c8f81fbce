#include "nccl/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "nccl/device.h"

namespace tutti::nccl {
namespace {

struct Group {
  int depth = 0;
  Outcome failure;  // of the first call that was refused
  std::vector<Task> tasks;
  std::vector<Operation> operations;
};

Group& group() {
  thread_local Group group;
  return group;
}

void keep_first(Outcome& first, const Outcome& outcome) {
  if (first.ok()) first = outcome;
}

/// body(0), body(1), ... at the same time, as far as threads can be had; those that `stay` (or, where none does, the
/// first) on this thread.
void run_together(std::size_t count, const std::function<void(std::size_t)>& body, std::vector<std::size_t> stay = {}) {
  if (stay.empty() && count > 0) stay.push_back(0);
  std::vector<std::thread> threads;
  std::vector<std::size_t> own = stay;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::find(stay.begin(), stay.end(), i) != stay.end()) continue;
    try {
      threads.emplace_back(body, i);
    } catch (const std::system_error&) {
      own.push_back(i);
    }
  }
  for (const std::size_t i : own) body(i);
  for (std::thread& thread : threads) thread.join();
}

Outcome first_of(const std::vector<Outcome>& outcomes) {
  Outcome first;
  for (const Outcome& outcome : outcomes) keep_first(first, outcome);
  return first;
}

// ---- Communicators to be made ----

void take_back(const Task& task) {
  if (task.comm == nullptr) return;
  close_handle(*task.slot);
  *task.slot = nullptr;
}

Outcome run_body(const Task& task) {
  try {
    return task.body();
  } catch (...) {
    return outcome_of_current_exception("ncclCommInitRank");  // bodies catch their own; this is for want of memory
  }
}

/// Runs a task whose caller waits.
Outcome run_and_keep(const Task& task) {
  const Outcome outcome = run_body(task);
  if (task.comm != nullptr) task.comm->progress().end(outcome);
  if (task.parent != nullptr) task.parent->progress().note(outcome);
  if (!outcome.ok()) take_back(task);
  return outcome;
}

Outcome run_tasks(const std::vector<Task>& tasks) {
  // By parent: one thread at a time may use a communicator. One without a parent is alone in its row.
  std::vector<std::vector<std::size_t>> rows;
  std::map<const Comm*, std::size_t> row_of;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Comm* key = tasks[i].parent != nullptr ? tasks[i].parent.get() : tasks[i].comm.get();
    const auto [found, is_new] = row_of.try_emplace(key, rows.size());
    if (is_new) rows.emplace_back();
    rows[found->second].push_back(i);
  }
  std::vector<Outcome> outcomes(tasks.size());
  run_together(rows.size(), [&](std::size_t row) {
    for (const std::size_t i : rows[row]) outcomes[i] = run_and_keep(tasks[i]);
  });
  return first_of(outcomes);
}

/// Runs the task in the background; the communicator's state says when it is done. The handle stays, also after a
/// failure.
void start_task(const Task& task) {
  const auto end = [task](const Outcome& outcome) {
    if (task.comm != nullptr) task.comm->progress().end(outcome);
    if (task.parent != nullptr)
      task.parent->progress().end(task.comm == nullptr || outcome.finishes ? outcome : Outcome{});
  };
  if (task.parent != nullptr) task.parent->progress().begin();
  try {
    std::thread([task, end] { end(run_body(task)); }).detach();
  } catch (...) {  // no thread can be had
    end(outcome_of_current_exception("ncclCommInitRank"));
  }
}

// ---- Operations ----

/// The operations of one communicator.
struct Batch {
  Comm* comm = nullptr;
  std::vector<Operation> collectives;
  std::vector<Operation> messages;
};

std::vector<Batch> by_communicator(std::vector<Operation> operations) {
  std::vector<Batch> batches;
  for (Operation& operation : operations) {
    Comm* comm = operation.comm.get();
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) { return b.comm == comm; });
    if (batch == batches.end()) {
      batches.push_back({comm, {}, {}});
      batch = batches.end() - 1;
    }
    (operation.is_message() ? batch->messages : batch->collectives).push_back(std::move(operation));
  }
  return batches;
}

/// A started one, and whose it is.
struct Started {
  const char* function;
  Comm* comm;
  Work work;
};

/// Starts them all; what could not be started is the failure.
Outcome start_all(const std::vector<Batch>& batches, std::vector<Started>& started) {
  Outcome first;
  const auto attempt = [&](const Operation& operation, auto&& start) {
    try {
      started.push_back({operation.function, operation.comm.get(), start()});
    } catch (...) {
      const Outcome outcome = outcome_of_current_exception(operation.function);
      operation.comm->progress().note(outcome);
      keep_first(first, outcome);
    }
  };
  for (const Batch& batch : batches) {
    for (const Operation& operation : batch.collectives) {
      attempt(operation, [&] { return start(operation); });
    }
    if (!batch.messages.empty()) {
      attempt(batch.messages.front(), [&] { return start_messages(batch.messages); });
    }
  }
  return first;
}

/// Runs the batch on this thread; there is no other one to run beside.
Outcome run_alone(const Batch& batch) { return run_batch(batch.collectives, batch.messages); }

/// Returns the batches that want to go into a stream of this thread's own.
std::vector<std::size_t> of_this_thread(const std::vector<Batch>& batches) {
  const auto wants = [](const Operation& o) { return is_of_this_thread(o.stream, o.send, o.recv); };
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    if (std::any_of(batch.collectives.begin(), batch.collectives.end(), wants) ||
        std::any_of(batch.messages.begin(), batch.messages.end(), wants)) {
      found.push_back(i);
    }
  }
  return found;
}

Outcome run_batches(const std::vector<Batch>& batches) {
  if (batches.size() == 1) return run_alone(batches.front());
  if (supports(Memory::device)) {  // the first call on device memory meets the others' before it counts as started
    std::vector<Outcome> outcomes(batches.size());
    run_together(
        batches.size(), [&](std::size_t i) { outcomes[i] = run_alone(batches[i]); }, of_this_thread(batches));
    return first_of(outcomes);
  }
  std::vector<Progress::Caller> callers;
  for (const Batch& batch : batches) callers.emplace_back(batch.comm->progress());
  std::vector<Started> started;
  Outcome first = start_all(batches, started);
  for (Started& one : started) {
    try {
      one.work.wait();
    } catch (...) {
      const Outcome outcome = outcome_of_current_exception(one.function);
      one.comm->progress().note(outcome);
      keep_first(first, outcome);
    }
  }
  return first;
}

/// Starts the batches of non-blocking communicators. The callbacks run before the communicator ends: see Comm::~Comm.
Outcome leave_running(const std::vector<Batch>& batches) {
  if (supports(Memory::device)) {  // see run_batches()
    const std::vector<std::size_t> stay = of_this_thread(batches);
    for (const Batch& batch : batches) batch.comm->progress().begin();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      if (std::find(stay.begin(), stay.end(), i) != stay.end()) continue;
      const Batch& batch = batches[i];
      try {
        std::thread([batch] {
          batch.comm->progress().end(run_alone(batch));
        }).detach();  // the operations keep the communicator
      } catch (...) {
        batch.comm->progress().end(outcome_of_current_exception("ncclGroupEnd"));
      }
    }
    for (const std::size_t i : stay) batches[i].comm->progress().end(run_alone(batches[i]));
    return {ncclInProgress, {}};
  }
  std::vector<Started> started;
  Outcome first = start_all(batches, started);
  for (const Started& one : started) {
    one.comm->progress().begin();
    one.work.then([comm = one.comm, function = one.function](const Error* error) {
      comm->progress().end(error == nullptr ? Outcome{} : outcome_of(function, *error));
    });
  }
  for (const Batch& batch : batches) {
    if (batch.comm->state().result == ncclInProgress) keep_first(first, {ncclInProgress, {}});
  }
  return first;
}

// ---- Both ----

ncclResult_t result_of_group(const Outcome& outcome) {
  return outcome.result == ncclInProgress ? ncclInProgress : report(outcome);
}

Outcome run_group(std::vector<Task> tasks, std::vector<Operation> operations) {
  bool blocking = false;
  bool non_blocking = false;
  const auto look_at = [&](const Comm* comm) {
    if (comm != nullptr) (comm->blocking() ? blocking : non_blocking) = true;
  };
  for (const Task& task : tasks) look_at(task.parent != nullptr ? task.parent.get() : task.comm.get());
  for (const Operation& operation : operations) look_at(operation.comm.get());
  if (blocking && non_blocking) {
    for (const Task& task : tasks) take_back(task);
    return {ncclInvalidArgument,
            "ncclGroupEnd: the group has calls on blocking and on non-blocking communicators; expected one kind"};
  }
  if (!non_blocking) {
    const Outcome made = run_tasks(tasks);
    return made.ok() && !operations.empty() ? run_batches(by_communicator(std::move(operations))) : made;
  }
  const bool making = !tasks.empty();
  for (const Task& task : tasks) start_task(task);
  const Outcome running = operations.empty() ? Outcome{} : leave_running(by_communicator(std::move(operations)));
  return running.ok() && making ? Outcome{ncclInProgress, {}} : running;
}

/// Ends the innermost group; false when it lies inside another one.
bool end_group(std::vector<Task>& tasks, std::vector<Operation>& operations, Outcome& failure) {
  Group& g = group();
  if (--g.depth > 0) return false;
  tasks = std::exchange(g.tasks, {});
  operations = std::exchange(g.operations, {});
  failure = std::exchange(g.failure, {});
  return true;
}

Outcome no_group(const char* function) {
  return {ncclInvalidUsage,
          fmt::format("{}: no group is open on this thread; expected ncclGroupStart before", function)};
}

}  // namespace

ncclResult_t submit(Operation operation) {
  if (group().depth > 0) {
    group().operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  if (operation.comm->blocking()) return report(run(operation));
  return result_of_group(run_group({}, {std::move(operation)}));
}

ncclResult_t submit(Task task) {
  if (task.slot != nullptr) *task.slot = task.comm == nullptr ? nullptr : open_handle(task.comm);
  if (group().depth > 0) {
    group().tasks.push_back(std::move(task));
    return ncclSuccess;
  }
  return result_of_group(run_group({std::move(task)}, {}));
}

ncclResult_t refuse(const Outcome& outcome) {
  if (group().depth > 0) keep_first(group().failure, outcome);
  return report(outcome);
}

bool is_in_group(const Comm& comm) {
  const Group& g = group();
  return std::any_of(g.operations.begin(), g.operations.end(),
                     [&](const Operation& o) { return o.comm.get() == &comm; }) ||
         std::any_of(g.tasks.begin(), g.tasks.end(),
                     [&](const Task& t) { return t.comm.get() == &comm || t.parent.get() == &comm; });
}

Outcome follows(const char* function, const Comm& comm) {
  const std::vector<Task>& tasks = group().tasks;
  if (std::none_of(tasks.begin(), tasks.end(), [&](const Task& t) { return t.suspends && t.parent.get() == &comm; })) {
    return {};
  }
  return {ncclInvalidUsage, fmt::format("{}: {}: the group that is open suspends or resumes the communicator; expected "
                                        "ncclGroupEnd first",
                                        function, comm.who())};
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGroupStart, ()) {
  ++group().depth;
  return ncclSuccess;
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGroupEnd, ()) {
  return guarded("ncclGroupEnd", [] {
    if (group().depth == 0) return report(no_group("ncclGroupEnd"));
    std::vector<Task> tasks;
    std::vector<Operation> operations;
    Outcome failure;
    if (!end_group(tasks, operations, failure)) return ncclSuccess;
    if (!failure.ok()) {
      for (const Task& task : tasks) take_back(task);
      return report(failure);
    }
    return result_of_group(run_group(std::move(tasks), std::move(operations)));
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info)) {
  return guarded("ncclGroupSimulateEnd", [&] {
    if (group().depth == 0) return report(no_group("ncclGroupSimulateEnd"));
    if (info != nullptr && (info->magic != kSimInfoMagic || info->size < sizeof(ncclSimInfo_t))) {
      return refuse({ncclInvalidArgument, "ncclGroupSimulateEnd: simInfo was not made by NCCL_SIM_INFO_INITIALIZER"});
    }
    std::vector<Task> tasks;
    std::vector<Operation> operations;
    Outcome failure;
    if (!end_group(tasks, operations, failure)) return ncclSuccess;
    for (const Task& task : tasks) take_back(task);
    if (!failure.ok()) return report(failure);
    return report({ncclInvalidUsage,
                   "ncclGroupSimulateEnd: the group has ended and ran nothing, but this library predicts no times"});
  });
}

}  // namespace tutti::nccl
