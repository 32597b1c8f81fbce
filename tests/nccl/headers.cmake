# nccl_header(VERSION folder): where NCCL's header of that version is, else nothing. Looked for in the folders of
# TUTTI_NCCL_INCLUDE, where scripts/nccl_headers.sh has put it, and in the package of .venv and of the system's Python.
find_package(Python3 QUIET COMPONENTS Interpreter)
set(TUTTI_NCCL_INCLUDE "" CACHE STRING "folders of NCCL's headers, one of each version")
file(GLOB nccl_places ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
if(Python3_Interpreter_FOUND)  # beside PyTorch with CUDA
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import nvidia.nccl as n; print(list(n.__path__)[0] + '/include')"
    OUTPUT_VARIABLE nccl_place ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND nccl_places ${nccl_place})
endif()

function(nccl_header version folder)
  set(${folder} "" PARENT_SCOPE)
  foreach(place ${TUTTI_NCCL_INCLUDE} ${CMAKE_SOURCE_DIR}/.nccl/${version}/include ${nccl_places})
    if(NOT EXISTS ${place}/nccl.h)
      continue()
    endif()
    file(STRINGS ${place}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    string(REPLACE ";" "." found "${numbers}")
    if(found STREQUAL version)
      set(${folder} ${place} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
