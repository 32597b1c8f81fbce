# What the build found. Needed: threads, fmt, libsodium, nlohmann-json. Everything else is optional; the summary says why it is off.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)

# fmt as a library, not as headers alone: the latter made a compilation take up to five times as long. Linked only, without
# what it defines: LibTorch has another fmt among its headers, and a target that sees those takes fmt from headers.
option(TUTTI_STATIC_DEPENDENCIES "Link fmt and libsodium from archives: what is built needs neither where it runs" OFF)
get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
add_library(tutti_third_party INTERFACE)
target_include_directories(tutti_third_party SYSTEM INTERFACE ${fmt_headers})
if(TUTTI_STATIC_DEPENDENCIES)
  include(tutti_static_dependencies)
else()
  target_link_libraries(tutti_third_party INTERFACE $<LINK_ONLY:fmt::fmt> PkgConfig::SODIUM)
endif()
target_link_libraries(tutti_third_party INTERFACE nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})

set_property(GLOBAL PROPERTY TUTTI_SUMMARY "")
# tutti_feature(NAME on/off "why"): one line of the configure summary.
function(tutti_feature name state why)
  set_property(GLOBAL APPEND PROPERTY TUTTI_SUMMARY "${name}|${state}|${why}")
endfunction()

function(tutti_summary)
  get_property(rows GLOBAL PROPERTY TUTTI_SUMMARY)
  message(STATUS "tutti ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} for "
    "${CMAKE_SYSTEM_PROCESSOR}, fmt ${fmt_VERSION}, libsodium ${SODIUM_VERSION}")
  foreach(row ${rows})
    string(REPLACE "|" ";" cells "${row}")
    list(GET cells 0 name)
    list(GET cells 1 state)
    list(GET cells 2 why)
    message(STATUS "  ${name}: ${state} (${why})")
    string(APPEND features "    {R\"~(${name})~\", R\"~(${state})~\", R\"~(${why})~\"},\n")
  endforeach()
  # The same for `tutti info`.
  get_property(source GLOBAL PROPERTY TUTTI_FEATURES_SOURCE)
  if(source)
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "#include \"cli/features.h\"

namespace tutti::cli {
namespace {
constexpr Feature kFeatures[] = {
@features@};
}  // namespace
std::span<const Feature> features() { return kFeatures; }
}  // namespace tutti::cli
")
  endif()
endfunction()

pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
if(HWLOC_FOUND)
  tutti_feature(hwloc on "${HWLOC_VERSION}, finds PCI switches, NICs and GPUs")
else()
  tutti_feature(hwloc off "not found, a host's PCI devices are not known")
endif()
include(tutti_networks)      # and the rooms that are made of it
