#include "collectives/executor/cuda/kernels.h"

#if defined(TUTTI_KERNEL_IMAGE)
#include TUTTI_KERNEL_DIGEST
// The file as it is, between two symbols.
asm(R"(
  .section .rodata
  .balign 64
  .globl tutti_kernel_image_begin
  .hidden tutti_kernel_image_begin
tutti_kernel_image_begin:
  .incbin ")" TUTTI_KERNEL_IMAGE R"("
  .globl tutti_kernel_image_end
  .hidden tutti_kernel_image_end
tutti_kernel_image_end:
  .byte 0
  .previous
)");
extern "C" {
extern const std::byte tutti_kernel_image_begin[];  // NOLINT(readability-identifier-naming)
extern const std::byte tutti_kernel_image_end[];    // NOLINT(readability-identifier-naming)
}
#endif

namespace tutti::executor::cuda {

std::span<const std::byte> kernel_image() {
#if defined(TUTTI_KERNEL_IMAGE)
  return {tutti_kernel_image_begin, tutti_kernel_image_end};
#else
  return {};
#endif
}

}  // namespace tutti::executor::cuda
