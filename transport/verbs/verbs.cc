#include "transport/verbs/verbs.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "base/options.h"
#include "base/parse.h"

#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/rc_wire.h"
#endif

namespace tutti::transport {

Result<std::unique_ptr<Wire>> VerbsWire::open(const WireJob& job) {
  const std::string& devices = options::text(Option::verbs_devices);
  Result<std::unique_ptr<Wire>> wire = open(job, devices);
  if (devices.empty() || wire.status().code() != Code::unsupported) return wire;
  // Who names ports wants them, whatever other network there is.
  return invalid_argument(fmt::format("TUTTI_VERBS_DEVICES is {}; {}", quote(devices), wire.status().message()));
}

#ifdef TUTTI_HAS_VERBS

Result<std::unique_ptr<Wire>> VerbsWire::open(const WireJob& job, const std::string& devices) {
  return verbs::RcWire::open(job, devices);
}

Result<std::string> VerbsWire::devices() {
  TUTTI_ASSIGN(const verbs::Library* library, verbs::library());
  TUTTI_ASSIGN(const std::vector<verbs::Port> ports, verbs::list_ports(*library));
  if (ports.empty()) return unsupported("verbs: this machine has no RDMA device");
  return verbs::list(ports);
}

Status VerbsWire::try_device_memory(const std::string& own_ip, std::byte* base, std::size_t bytes,
                                    const Dmabuf& memory) {
  TUTTI_ASSIGN(const verbs::Library* library, verbs::library());
  TUTTI_ASSIGN(const std::vector<verbs::Port> ports, verbs::list_ports(*library));
  TUTTI_ASSIGN(const std::vector<verbs::RailChoice> choices,
               verbs::choose_rails(ports, options::text(Option::verbs_devices), own_ip));
  TUTTI_ASSIGN(const std::unique_ptr<verbs::Rail> rail,
               verbs::Rail::open(*library, ports[choices.front().port], choices.front().gid, 1));
  TUTTI_ASSIGN(ibv_mr* const registered, rail->register_device(base, bytes, memory));
  rail->deregister(registered);
  return {};
}

#else

namespace {
Status without() { return unsupported("verbs: Tutti was built without libibverbs' headers (Debian: libibverbs-dev)"); }
}  // namespace

Status VerbsWire::try_device_memory(const std::string& /*own_ip*/, std::byte* /*base*/, std::size_t /*bytes*/,
                                    const Dmabuf& /*memory*/) {
  return without();
}

Result<std::unique_ptr<Wire>> VerbsWire::open(const WireJob& /*job*/, const std::string& /*devices*/) {
  return without();
}

Result<std::string> VerbsWire::devices() { return without(); }

#endif

}  // namespace tutti::transport
