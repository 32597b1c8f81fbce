# What `cmake --install` puts where, and what libtutti.so shows. Included by tutti_libraries().
#
# The component `library` is all that a program is built and run with. The same files are in the components that packages
# are made of (cmake/tutti_package.cmake): `runtime` and `development`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(tutti::tutti ALIAS tutti_shared)

set(tutti_map ${tutti_SOURCE_DIR}/cmake/tutti.map)
target_link_options(tutti_shared PRIVATE LINKER:--version-script=${tutti_map})
set_property(TARGET tutti_shared APPEND PROPERTY LINK_DEPENDS ${tutti_map})
if(NOT TUTTI_SANITIZE)  # a sanitizer's run time is found by the program
  target_link_options(tutti_shared PRIVATE LINKER:-z,defs)
endif()

# The static library leaves these to the program; tuttiConfig.cmake finds them.
target_link_libraries(tutti_static INTERFACE
  $<INSTALL_INTERFACE:PkgConfig::TUTTI_SODIUM> $<INSTALL_INTERFACE:fmt::fmt> $<INSTALL_INTERFACE:Threads::Threads>)

set(tutti_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
configure_package_config_file(${tutti_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${tutti_BINARY_DIR}/cmake/tuttiConfig.cmake
  INSTALL_DESTINATION ${tutti_cmake_dir})
write_basic_package_version_file(${tutti_BINARY_DIR}/cmake/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)

# Relative to the .pc file where that can be said, so that a moved prefix still works.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(TUTTI_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  string(REGEX REPLACE "[^/]+" ".." tutti_up ${CMAKE_INSTALL_LIBDIR})
  set(TUTTI_PC_PREFIX "\${pcfiledir}/../${tutti_up}")
endif()
if(TUTTI_STATIC_DEPENDENCIES)  # for other machines, which may have another fmt: the static library stays here
  set(static_part static)
  set(TUTTI_PC_PRIVATE "")
else()
  set(static_part development)
  set(TUTTI_PC_PRIVATE "libsodium fmt")
endif()
configure_file(${tutti_SOURCE_DIR}/cmake/tutti.pc.in ${tutti_BINARY_DIR}/cmake/tutti.pc @ONLY)

# tutti_install_library(runtime development static): which component gets which part.
function(tutti_install_library runtime development static)
  install(DIRECTORY ${tutti_SOURCE_DIR}/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT ${development} ${ARGN})
  install(TARGETS tutti_shared EXPORT shared_${runtime} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT ${runtime} NAMELINK_COMPONENT ${development} ${ARGN})
  install(TARGETS tutti_static EXPORT static_${static} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT ${static} ${ARGN})
  install(EXPORT shared_${runtime} FILE tuttiSharedTargets.cmake NAMESPACE tutti:: DESTINATION ${tutti_cmake_dir}
    COMPONENT ${development} ${ARGN})
  install(EXPORT static_${static} FILE tuttiStaticTargets.cmake NAMESPACE tutti:: DESTINATION ${tutti_cmake_dir}
    COMPONENT ${static} ${ARGN})
  install(FILES ${tutti_BINARY_DIR}/cmake/tuttiConfig.cmake ${tutti_BINARY_DIR}/cmake/tuttiConfigVersion.cmake
    DESTINATION ${tutti_cmake_dir} COMPONENT ${development} ${ARGN})
  install(FILES ${tutti_BINARY_DIR}/cmake/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT ${development} ${ARGN})
endfunction()
tutti_install_library(library library library)
tutti_install_library(runtime development ${static_part} EXCLUDE_FROM_ALL)
