#include "collectives/baseline/baseline.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/options.h"
#include "collectives/baseline/plugins/plugin.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"openmpi", "mpich", "gloo", "nccl"};

/// The plug-in's path; the bare file name (for the loader to search) when it lies in none of the known places.
std::string find_plugin(const std::string& name) {
  const std::string file = "libtutti_baseline_" + name + ".so";
  const std::string& folder = options::text(Option::baseline_path);
  if (!folder.empty()) return (std::filesystem::path(folder) / file).string();
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const char* place : {"../lib", "../lib/tutti"}) {
    const std::filesystem::path candidate = program.parent_path() / place / file;
    if (std::filesystem::exists(candidate, ignored)) return candidate.lexically_normal().string();
  }
  return file;
}

}  // namespace

bool baseline_is_installed(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(find_plugin(name), ignored);
}

Result<std::shared_ptr<CommunicatorInterface>> open_baseline(const std::string& name,
                                                             const BaselineSettings& settings) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    return invalid_argument(fmt::format("backend '{}' is unknown; expected tutti, openmpi, mpich, gloo or nccl", name));
  }
  const std::string path = find_plugin(name);
  // MPI: global, because Open MPI's own plug-ins expect to find its symbols. Gloo: the opposite, its own symbols first,
  // because LibTorch exports those of another version of Gloo. Never closed, because they keep threads and exit
  // handlers in there.
  const int binding = name == "gloo" ? RTLD_LOCAL | RTLD_DEEPBIND : name == "nccl" ? RTLD_LOCAL : RTLD_GLOBAL;
  void* library = dlopen(path.c_str(), RTLD_NOW | binding);
  if (library == nullptr) {
    return unsupported(fmt::format("backend {}: its plug-in could not be opened ({})", name, dlerror()));
  }
  auto* open = reinterpret_cast<OpenBaseline*>(dlsym(library, kOpenBaselineSymbol));
  if (open == nullptr) {
    return unsupported(
        fmt::format("backend {}: {} is no baseline plug-in ({} is missing)", name, path, kOpenBaselineSymbol));
  }
  std::shared_ptr<CommunicatorInterface> communicator;
  Status status;
  BaselineSettings here = settings;
  if (here.interface.empty()) here.interface = options::text(Option::interface);
  open(here, communicator, status);
  if (!status.ok()) return status;
  return communicator;
}

}  // namespace tutti
