// A network's NIC that registers memory of a device, where verbs has none that can: the pages of the descriptor,
// mapped, under the addresses that they have on the device. So all but that one call is real, on Soft-RoCE too.
#pragma once

#ifdef TUTTI_HAS_VERBS

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "transport/verbs/library_testing.h"

namespace tutti::testing {

/// From now on, in place of ibv_reg_dmabuf_mr. The mappings stay. REQUIRES: this machine has libibverbs.
inline void register_mapped_pages() {
  using Register = ibv_mr* (*)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned);
  static const auto with_address =
      reinterpret_cast<Register>(::dlsym(::dlopen("libibverbs.so.1", RTLD_NOW), "ibv_reg_mr_iova2"));
  transport::verbs::set_reg_dmabuf_for_tests([](ibv_pd* domain, std::uint64_t offset, std::size_t length,
                                                std::uint64_t iova, int descriptor, int access) {
    void* pages = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(offset));
    return with_address(domain, pages, length, iova, static_cast<unsigned>(access));
  });
}

}  // namespace tutti::testing

#endif  // TUTTI_HAS_VERBS
