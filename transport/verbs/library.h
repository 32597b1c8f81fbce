// libibverbs, found at run time: a table of the functions that Tutti uses. Nothing links to it, so the library loads on
// machines without RDMA. What the hot path calls (post_send, poll_cq) are inline functions of its header, which go
// through the device's own table.
//
// Threads: any.
// Source: rdma-core 44, infiniband/verbs.h; InfiniBand Architecture Specification 1.4, volume 1, chapters 9 to 11.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tutti::transport::verbs {

// The symbols' names are the header's, some of which are also macros: they are looked up as they stand here.
#define TUTTI_VERBS_FUNCTIONS(X) \
  X(ibv_get_device_list)         \
  X(ibv_free_device_list)        \
  X(ibv_get_device_name)         \
  X(ibv_open_device)             \
  X(ibv_close_device)            \
  X(ibv_query_device)            \
  X(ibv_query_port)              \
  X(_ibv_query_gid_table)        \
  X(ibv_alloc_pd)                \
  X(ibv_dealloc_pd)              \
  X(ibv_reg_mr)                  \
  X(ibv_dereg_mr)                \
  X(ibv_create_comp_channel)     \
  X(ibv_destroy_comp_channel)    \
  X(ibv_create_cq)               \
  X(ibv_destroy_cq)              \
  X(ibv_get_cq_event)            \
  X(ibv_ack_cq_events)           \
  X(ibv_create_qp)               \
  X(ibv_modify_qp)               \
  X(ibv_destroy_qp)              \
  X(ibv_wc_status_str)

struct Library {
#define TUTTI_VERBS_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TUTTI_VERBS_FUNCTIONS(TUTTI_VERBS_MEMBER)
#undef TUTTI_VERBS_MEMBER

  /// Registers a device's memory. Null: the library is older than rdma-core 34.
  using RegDmabufMr = ibv_mr* (*)(ibv_pd* domain, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                                  int descriptor, int access);
  RegDmabufMr ibv_reg_dmabuf_mr_ = nullptr;

  /// All of the attributes, whatever the library's age.
  int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) const;
};

/// The table of this process, looked for at the first call. Errors: unsupported, one sentence.
Result<const Library*> library();

/// "retry counter exceeded: the peer does not answer (vendor error 0x81)".
std::string words_of(const Library& verbs, ibv_wc_status status, std::uint32_t vendor_error);

}  // namespace tutti::transport::verbs
