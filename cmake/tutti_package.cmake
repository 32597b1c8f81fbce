# What cpack makes of a build: Debian packages (DEB) and an archive that runs from any folder (TGZ). scripts/package.sh
# builds one folder for each, since they differ in where libraries lie and whether fmt and libsodium are linked in.
#
#   libtutti0      libtutti.so.0
#   libtutti-dev   headers, libtutti.so, libtutti.a, the CMake package and the pkg-config file
#   tutti-tools    programs, manual pages, completions for bash, the plug-in that measures NCCL
#   tutti-nccl     libtutti_nccl.so, in a folder of its own: ldconfig would make it the system's libnccl.so.2
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(tutti_tools)  # what the component `tools` has

set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VENDOR Tutti)
set(CPACK_PACKAGE_FILE_NAME tutti-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_CONTACT "The authors of Tutti <tutti@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${tutti_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL runtime development tools nccl)

set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)  # everything in one, with a folder around it: scripts/package.sh says so

# What a package needs is found by dpkg-shlibdeps in its files. What is looked for at run time is only suggested.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(networks "ibverbs-providers, libhwloc15, libibverbs1, libucx0")

# tutti_debian(COMPONENT package section "summary" "depends" "suggests" "text")
macro(tutti_debian component name section summary depends suggests)
  string(TOUPPER ${component} part)
  set(CPACK_DEBIAN_${part}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${part}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${part}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_DEBIAN_${part}_PACKAGE_SUGGESTS "${suggests}")
  set(CPACK_DEBIAN_${part}_DESCRIPTION "${summary}\n${ARGN}")
  install(FILES ${tutti_SOURCE_DIR}/CHANGELOG.md DESTINATION share/doc/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()

set(exact "= ${PROJECT_VERSION}")
tutti_debian(runtime libtutti${PROJECT_VERSION_MAJOR} libs "collective communication: the library" "" "${networks}"
  "Tutti joins processes, threads and GPUs in collective calls such as
all_reduce. This is the shared library.")
# What a package that is linked to the library depends on. C programs could run with a newer one, but C++ programs only with
# the one they were compiled with, and the linker cannot tell one from the other.
file(CONFIGURE OUTPUT ${tutti_BINARY_DIR}/cmake/shlibs @ONLY
  CONTENT "libtutti @PROJECT_VERSION_MAJOR@ libtutti@PROJECT_VERSION_MAJOR@ (@exact@)\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${tutti_BINARY_DIR}/cmake/shlibs)
tutti_debian(development libtutti-dev libdevel "collective communication: what programs are compiled with"
  "libtutti${PROJECT_VERSION_MAJOR} (${exact}), libc6-dev, libfmt-dev, libsodium-dev" "cmake, pkg-config"
  "Headers for C and C++, the static library, the CMake package and the
pkg-config file of Tutti.")
tutti_debian(tools tutti-tools utils "collective communication: benchmarks and the program tutti"
  "" "${networks}, tutti-nccl"
  "all_reduce_perf and its siblings measure collective calls, with the options
and columns of nccl-tests. tutti shows what a machine offers, and prints, draws
and proves the plans that calls follow.")
tutti_debian(nccl tutti-nccl libs "collective communication: NCCL's interface" "" "${networks}"
  "libtutti_nccl.so serves programs that were written for NCCL, on GPUs or on
the memory of the host:
LD_PRELOAD=/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/tutti/libtutti_nccl.so program")

include(CPack)

# What is packed, and all that needs it.
add_custom_target(tutti_packed DEPENDS tutti_shared tutti_static tutti_nccl tutti_tools)
