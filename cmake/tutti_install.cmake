# What `cmake --install` puts where, and what libtutti.so shows. Included by tutti_libraries().
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
install(DIRECTORY ${tutti_SOURCE_DIR}/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
foreach(kind Shared Static)
  string(TOLOWER ${kind} target)
  install(TARGETS tutti_${target} EXPORT tutti${kind}Targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT library
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
  install(EXPORT tutti${kind}Targets NAMESPACE tutti:: DESTINATION ${tutti_cmake_dir} COMPONENT library)
endforeach()

configure_package_config_file(${tutti_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${tutti_BINARY_DIR}/cmake/tuttiConfig.cmake
  INSTALL_DESTINATION ${tutti_cmake_dir})
write_basic_package_version_file(${tutti_BINARY_DIR}/cmake/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${tutti_BINARY_DIR}/cmake/tuttiConfig.cmake ${tutti_BINARY_DIR}/cmake/tuttiConfigVersion.cmake
  DESTINATION ${tutti_cmake_dir} COMPONENT library)

# Relative to the .pc file where that can be said, so that a moved prefix still works.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(TUTTI_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  string(REGEX REPLACE "[^/]+" ".." tutti_up ${CMAKE_INSTALL_LIBDIR})
  set(TUTTI_PC_PREFIX "\${pcfiledir}/../${tutti_up}")
endif()
configure_file(${tutti_SOURCE_DIR}/cmake/tutti.pc.in ${tutti_BINARY_DIR}/cmake/tutti.pc @ONLY)
install(FILES ${tutti_BINARY_DIR}/cmake/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
