# tutti_built: libtutti.a as the repository around this folder has built it, with what it needs.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)

set(library ${TUTTI_TORCH_LIBRARY})
if(NOT library)  # not given: that of build/, as new as its sources
  set(library ${repository}/build/libtutti.a)
  add_custom_target(tutti_build COMMAND ${CMAKE_COMMAND} --build ${repository}/build --target tutti_static
    BYPRODUCTS ${library} COMMENT "Bringing ${library} up to date" USES_TERMINAL VERBATIM)
  file(STRINGS ${repository}/build/CMakeCache.txt without_kernels REGEX "^TUTTI_KERNELS:[A-Z]+=none$")
  if(without_kernels)
    message(WARNING "The library in ${repository}/build has no GPU kernels, and so the package has none: ./dev build makes them")
  endif()
endif()
message(STATUS "Tutti as built: ${library}")

add_library(tutti_built STATIC IMPORTED)
set_target_properties(tutti_built PROPERTIES IMPORTED_LOCATION ${library} IMPORTED_LINK_DEPENDENT_LIBRARIES ""
  INTERFACE_INCLUDE_DIRECTORIES "${repository};${repository}/include")
target_compile_features(tutti_built INTERFACE cxx_std_20)
set(TUTTI_TORCH_ARCHIVES "" CACHE STRING "Archives of fmt and libsodium to link in; empty: the shared libraries are needed")
if(TUTTI_TORCH_ARCHIVES)
  target_link_libraries(tutti_built INTERFACE ${TUTTI_TORCH_ARCHIVES})
else()
  target_link_libraries(tutti_built INTERFACE $<LINK_ONLY:fmt::fmt> PkgConfig::SODIUM)
endif()
target_link_libraries(tutti_built INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(TARGET tutti_build)
  add_dependencies(tutti_built tutti_build)
endif()
