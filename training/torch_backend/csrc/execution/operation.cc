#include "csrc/execution/operation.h"

namespace tutti_torch {

namespace {

using tutti::Collective;

tutti::CallOptions options_of(const Operation& o) {
  tutti::CallOptions options;
  options.factor = o.factor;
  options.stream = o.stream;
  return options;
}

[[noreturn]] void no_collective() {
  throw tutti::Error(tutti::Code::invalid_argument, "a send or receive is no Operation; expected a collective");
}

}  // namespace

void run(tutti::Communicator& c, const Operation& o) {
  switch (o.kind) {
    case Collective::all_reduce: return c.all_reduce(o.send, o.recv, o.count, o.type, o.op, options_of(o));
    case Collective::reduce_scatter: return c.reduce_scatter(o.send, o.recv, o.count, o.type, o.op, options_of(o));
    case Collective::all_gather: return c.all_gather(o.send, o.recv, o.count, o.type, options_of(o));
    case Collective::broadcast: return c.broadcast(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::reduce: return c.reduce(o.send, o.recv, o.count, o.type, o.op, o.root, options_of(o));
    case Collective::all_to_all: return c.all_to_all(o.send, o.recv, o.count, o.type, options_of(o));
    case Collective::all_to_allv:
      return c.all_to_allv(o.send, o.splits->send_counts.data(), o.splits->send_offsets.data(), o.recv,
                           o.splits->recv_counts.data(), o.splits->recv_offsets.data(), o.type, options_of(o));
    case Collective::gather: return c.gather(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::scatter: return c.scatter(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::barrier: return c.barrier();
    case Collective::send_recv: break;
  }
  no_collective();
}

tutti::Work start(tutti::Communicator& c, const Operation& o) {
  switch (o.kind) {
    case Collective::all_reduce: return c.all_reduce_async(o.send, o.recv, o.count, o.type, o.op, options_of(o));
    case Collective::reduce_scatter:
      return c.reduce_scatter_async(o.send, o.recv, o.count, o.type, o.op, options_of(o));
    case Collective::all_gather: return c.all_gather_async(o.send, o.recv, o.count, o.type, options_of(o));
    case Collective::broadcast: return c.broadcast_async(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::reduce: return c.reduce_async(o.send, o.recv, o.count, o.type, o.op, o.root, options_of(o));
    case Collective::all_to_all: return c.all_to_all_async(o.send, o.recv, o.count, o.type, options_of(o));
    case Collective::all_to_allv:
      return c.all_to_allv_async(o.send, o.splits->send_counts.data(), o.splits->send_offsets.data(), o.recv,
                                 o.splits->recv_counts.data(), o.splits->recv_offsets.data(), o.type, options_of(o));
    case Collective::gather: return c.gather_async(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::scatter: return c.scatter_async(o.send, o.recv, o.count, o.type, o.root, options_of(o));
    case Collective::barrier: return c.barrier_async();
    case Collective::send_recv: break;
  }
  no_collective();
}

}  // namespace tutti_torch
