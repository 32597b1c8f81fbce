// The networks that this build knows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/wire/wire.h"

namespace tutti {

/// The one that TUTTI_NETWORK names; for "auto" the first of those below that can be had on this host. One that is
/// there and cannot be used (no memory may be locked) is passed over with a line on standard error. Errors:
/// invalid_argument where a setting of one that is tried (TUTTI_VERBS_DEVICES) cannot be met; unsupported, saying for
/// each why it cannot be had.
///   verbs   libibverbs: InfiniBand and RoCE, directly
///   tcp     sockets, which there are everywhere
///   ucx     libucx: TCP, InfiniBand, whatever it finds; so only where it is asked for
Result<std::unique_ptr<transport::Wire>> open_wire(const transport::WireJob& job);

struct TriedWire {
  std::string name;
  Status status;             // why it cannot be had here: it is not built in, its library or a device is missing
  transport::WireInfo info;  // where it can
};
/// Opens each of them as a process of a job would whose peers reach it at `own_ip`, and closes it again.
std::vector<TriedWire> try_wires(const std::string& own_ip);

using WireOpener = Result<std::unique_ptr<transport::Wire>> (*)(const transport::WireJob& job);
/// From now on open_wire() gives what this makes; null: one of those above again.
void set_wire_for_tests(WireOpener open);

}  // namespace tutti
