// Device memory that other processes can map, and their memory mapped here.
//
// Two ways, the first where the device has it: the driver's legacy IPC handles (64 bytes, which any process of the host
// may open as long as the owner lives), and physical memory that is handed over as a file descriptor.
//
// Threads: each object is used by one thread at a time.
// Source: CUDA driver API reference, 13.0, 6.13 (unified addressing, IPC) and 6.14 (virtual memory management).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/sockets/fd.h"

namespace tutti::transport {

enum class ExportKind : std::uint32_t { none, ipc, descriptor };

/// How another process opens an allocation; plain bytes, to lie in shared memory. For a descriptor, that is sent
/// beside.
struct Export {
  ExportKind kind = ExportKind::none;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
  unsigned char handle[CU_IPC_HANDLE_SIZE] = {};
};

/// Memory of this process's own that others may map (or not: ExportKind::none, where the device knows no way).
class OwnMemory {
 public:
  /// Not zeroed. Errors: memory_limit, system; unsupported without a driver.
  static Result<std::unique_ptr<OwnMemory>> make(int device, std::size_t bytes);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  const Export& how() const { return how_; }
  int descriptor() const { return descriptor_.get(); }  // ExportKind::descriptor

 private:
  OwnMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  Status allocate();
  Status map_physical();

  const int device_;
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
  Export how_;
  sockets::Fd descriptor_;
};

/// The allocation that an address lies in.
struct Allocation {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;  // never used twice: another one means that the memory was freed and allocated anew
  bool ipc = false;      // legacy handles serve
  bool descriptor = false;
  int device = -1;
};

/// Errors: invalid_argument when it is no memory of a GPU.
Result<Allocation> find_allocation(const void* address);

/// How others open memory that was allocated elsewhere, with a descriptor of its own. ExportKind::none where they
/// cannot: memory of a pool (cudaMallocAsync), managed memory, physical memory without a handle type.
struct Exported {
  Export how;
  sockets::Fd descriptor;
};
Result<Exported> export_allocation(const Allocation& allocation);

/// Another process's memory, mapped for the kernels of `device`.
class PeerMemory {
 public:
  /// `descriptor`: of ExportKind::descriptor. Errors: system (the owner has ended or freed it), unsupported (this GPU
  /// cannot reach that one's memory).
  static Result<std::unique_ptr<PeerMemory>> open(int device, const Export& how, sockets::Fd descriptor);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  CUdeviceptr address() const { return address_; }

 private:
  PeerMemory(int device, const Export& how) : device_(device), how_(how) {}

  const int device_;
  const Export how_;
  CUdeviceptr address_ = 0;
};

}  // namespace tutti::transport
