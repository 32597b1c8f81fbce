#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>

#include "transport/verbs/library_testing.h"

namespace tutti::transport::verbs {

namespace {

struct Loaded {
  Library table;
  Status status;

  Loaded() {
    // Never closed: devices have threads and mappings that stay until the process ends.
    void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      status = unsupported("verbs: this machine has no libibverbs.so.1 (Debian: libibverbs1, ibverbs-providers)");
      return;
    }
#define TUTTI_VERBS_FIND(name)                                                                                     \
  if ((table.name##_ = reinterpret_cast<decltype(table.name##_)>(dlsym(handle, #name))) == nullptr && status.ok()) \
    status = unsupported("verbs: this machine's libibverbs has no " #name "; rdma-core 32 or newer is needed");
    TUTTI_VERBS_FUNCTIONS(TUTTI_VERBS_FIND)
#undef TUTTI_VERBS_FIND
    // Before Linux 5.12 a fork leaves the pages that a device reads to the child. With this the child does without
    // them.
    if (const auto fork_init = reinterpret_cast<int (*)()>(dlsym(handle, "ibv_fork_init"))) (void)fork_init();
    table.ibv_reg_dmabuf_mr_ = reinterpret_cast<Library::RegDmabufMr>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  }
};

Loaded& loaded() {
  static auto* loaded = new Loaded;
  return *loaded;
}

const char* plain_words(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR: return "retry counter exceeded: the peer does not answer";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "receiver-not-ready retries exceeded";
    case IBV_WC_WR_FLUSH_ERR: return "the connection was reset before this was sent";
    case IBV_WC_LOC_PROT_ERR: return "local protection error: memory that is being sent has been freed or unexposed";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error: the peer does not expose that memory any more";
    case IBV_WC_REM_INV_REQ_ERR: return "the peer's device refuses the request as invalid";
    case IBV_WC_REM_OP_ERR: return "the peer's device could not carry the request out";
    case IBV_WC_RESP_TIMEOUT_ERR: return "the peer's answer did not come in time";
    case IBV_WC_LOC_QP_OP_ERR: return "the connection has failed on this side: its port may be down";
    case IBV_WC_FATAL_ERR: return "fatal error of the device";
    default: return nullptr;
  }
}

}  // namespace

int Library::query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) const {
  attributes = {};
  if (verbs_context* newer = verbs_get_ctx_op(context, query_port); newer != nullptr) {
    return newer->query_port(context, port, &attributes, sizeof attributes);
  }
  return ibv_query_port_(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
}

Result<const Library*> library() {
  if (!loaded().status.ok()) return loaded().status;
  return &loaded().table;
}

void set_reg_dmabuf_for_tests(Library::RegDmabufMr function) { loaded().table.ibv_reg_dmabuf_mr_ = function; }

std::string words_of(const Library& verbs, ibv_wc_status status, std::uint32_t vendor_error) {
  const char* words = plain_words(status);
  return fmt::format("{} (vendor error {:#x})", words != nullptr ? words : verbs.ibv_wc_status_str_(status),
                     vendor_error);
}

}  // namespace tutti::transport::verbs
#endif
