# tutti_find_libtorch(HINTS...): the targets torch and torch_library, as find_package(Torch) makes them, of -DTorch_DIR=, of
# CMAKE_PREFIX_PATH or of a hint (<torch>/share/cmake/Torch each). Sets Torch_DIR, Torch_VERSION and TORCH_INSTALL_PREFIX; where
# there is none that serves, TUTTI_LIBTORCH_WHY_NOT says why.
#
# It does not ask find_package(Torch): that of a PyTorch with CUDA, which pip installs, wants all libraries of a CUDA toolkit and
# ends the configuration without them. Nothing here compiles CUDA, and libtorch.so brings its CUDA half itself.
set(TUTTI_LIBTORCH_SINCE 2.11)

function(tutti_find_libtorch)
  find_path(Torch_DIR TorchConfig.cmake PATHS ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH ${ARGN}
    PATH_SUFFIXES share/cmake/Torch Torch NO_DEFAULT_PATH)
  get_filename_component(prefix "${Torch_DIR}/../../.." ABSOLUTE)
  set(version_header ${prefix}/include/torch/headeronly/version.h)
  if(NOT Torch_DIR)
    set(why_not "LibTorch not found: pip install torch in .venv, or give -DTorch_DIR=")
  elseif(NOT EXISTS ${version_header} OR NOT EXISTS ${prefix}/lib/libtorch.so)
    set(why_not "LibTorch in ${prefix} is older than ${TUTTI_LIBTORCH_SINCE} or is not whole")
  else()
    file(STRINGS ${version_header} lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    string(REPLACE ";" "." version "${numbers}")
    if(version VERSION_LESS TUTTI_LIBTORCH_SINCE)
      set(why_not "LibTorch ${version} in ${prefix} is older than ${TUTTI_LIBTORCH_SINCE}")
    endif()
  endif()
  set(TUTTI_LIBTORCH_WHY_NOT "${why_not}" PARENT_SCOPE)
  if(why_not)
    return()
  endif()
  set(Torch_VERSION ${version} PARENT_SCOPE)
  set(TORCH_INSTALL_PREFIX ${prefix} PARENT_SCOPE)

  add_library(torch INTERFACE IMPORTED GLOBAL)
  # What LibTorch's own package defines for whom it serves.
  target_compile_definitions(torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
  target_include_directories(torch INTERFACE ${prefix}/include ${prefix}/include/torch/csrc/api/include)
  # Libraries of which no symbol is used register what they have when they are loaded.
  target_link_libraries(torch INTERFACE -Wl,--no-as-needed ${prefix}/lib/libtorch.so ${prefix}/lib/libtorch_cpu.so
    ${prefix}/lib/libc10.so -Wl,--as-needed)
  # The C++ library that those have, by its name, where the compiler would link another one in (-static-libstdc++).
  target_link_libraries(torch INTERFACE -l:libstdc++.so.6)
  add_library(torch_library INTERFACE IMPORTED GLOBAL)
  target_link_libraries(torch_library INTERFACE torch)
endfunction()
