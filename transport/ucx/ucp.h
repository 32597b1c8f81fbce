// UCX's UCP, found at run time: a table of the functions that Tutti uses. Nothing links to libucp, so the library loads
// on machines without UCX.
//
//   TUTTI_ASSIGN(const ucx::Ucp* ucp, ucx::ucp());
//   TUTTI_TRY(ucx::check(ucp->init_version(...), "ucp_init"));   // "ucp_init failed: No such device"
//
// Threads: any.
// Source: UCX 1.13, ucp/api/ucp.h; the interface is stable within major version 1.
#pragma once

#ifdef TUTTI_HAS_UCX

#include <ucp/api/ucp.h>

#include <string>

#include "base/status.h"

namespace tutti::ucx {

/// Name without "ucp_".
#define TUTTI_UCP_FUNCTIONS(X)  \
  X(get_version)                \
  X(config_read)                \
  X(config_modify)              \
  X(config_release)             \
  X(init_version)               \
  X(cleanup)                    \
  X(mem_map)                    \
  X(mem_unmap)                  \
  X(worker_create)              \
  X(worker_destroy)             \
  X(worker_query)               \
  X(worker_get_address)         \
  X(worker_release_address)     \
  X(worker_get_efd)             \
  X(worker_arm)                 \
  X(worker_progress)            \
  X(worker_set_am_recv_handler) \
  X(ep_create)                  \
  X(ep_close_nbx)               \
  X(am_send_nbx)                \
  X(am_recv_data_nbx)           \
  X(request_free)               \
  X(request_check_status)

struct Ucp {
#define TUTTI_UCP_MEMBER(name) decltype(&ucp_##name) name = nullptr;
  TUTTI_UCP_FUNCTIONS(TUTTI_UCP_MEMBER)
#undef TUTTI_UCP_MEMBER
  decltype(&ucs_status_string) status_string = nullptr;  // of libucs, which libucp brings along
  unsigned minor = 0;                                    // of its version, 1.minor
};

/// The table of this process, looked for at the first call; the same answer ever after. Loading is kept quiet: the
/// signal handlers that UCX installs for a program that crashes are taken out again, and its log says fatal things
/// only, unless the environment sets UCX_HANDLE_ERRORS or UCX_LOG_LEVEL, or the program had UCX before. Errors:
/// unsupported, one sentence (no UCX, too old a UCX).
Result<const Ucp*> ucp();

/// memory_limit when memory is short, unsupported when nothing serves, else system.
Code code_of(ucs_status_t status);
/// "<call> failed: <UCX's words>", with that code.
Status check(ucs_status_t status, const std::string& call);
/// UCX's words.
std::string words_of(ucs_status_t status);

}  // namespace tutti::ucx

#endif
