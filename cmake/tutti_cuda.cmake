# The GPU half: TUTTI_CUDA=AUTO (where the toolkit is found), ON (an error without it) or OFF.
#
# Only the toolkit's headers are used, and they for types: the driver is found at run time (device/driver.h), so that what is
# built here runs on machines without one. Rooms and tests see TUTTI_HAS_CUDA=1 and cuda.h through tutti_third_party.
set(TUTTI_CUDA AUTO CACHE STRING "The GPU half: AUTO, ON or OFF")
set_property(CACHE TUTTI_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TUTTI_CUDA_FOUND OFF)
if(TUTTI_CUDA STREQUAL "OFF")
  tutti_feature(cuda off "TUTTI_CUDA is OFF")
else()
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND)
    set(TUTTI_CUDA_FOUND ON)
    target_include_directories(tutti_third_party SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(tutti_third_party INTERFACE TUTTI_HAS_CUDA=1)
    tutti_feature(cuda on "toolkit ${CUDAToolkit_VERSION}, the driver is looked for at run time")
  elseif(TUTTI_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TUTTI_CUDA is ON, but no CUDA toolkit of version 12.8 or newer was found")
  else()
    tutti_feature(cuda off "no CUDA toolkit of version 12.8 or newer was found")
  endif()
endif()

# tutti_kernels(): the kernels of collectives/executor/cuda, as a fat binary inside the room's kernels.cc. By nvcc itself and
# not by CMake's CUDA language, which would want to link to the runtime, and a host compiler that nvcc knows. Without nvcc the
# GPU half is built all the same, and says at run time that it has no kernels.
set(TUTTI_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures that kernels are compiled for; the last one as PTX too")
set(TUTTI_KERNELS "$ENV{TUTTI_KERNELS}" CACHE STRING
  "A file: the kernels that another build has compiled. none: the library has none. Empty: they are compiled")
set(TUTTI_KERNEL_IMAGE "" CACHE INTERNAL "The kernels of this build; empty: none")
function(tutti_kernels)
  if(NOT TUTTI_CUDA_FOUND)
    return()
  endif()
  if(TUTTI_KERNELS STREQUAL "none")
    tutti_feature(kernels off "TUTTI_KERNELS is none")
    return()
  endif()
  set(folder ${tutti_SOURCE_DIR}/collectives/executor/cuda)
  if(TUTTI_KERNELS)
    if(NOT EXISTS ${TUTTI_KERNELS})
      message(FATAL_ERROR "TUTTI_KERNELS is '${TUTTI_KERNELS}', which is not there; expected kernels.fatbin of another build, or "
        "none, or nothing: then they are compiled")
    endif()
    set(image ${TUTTI_KERNELS})
    tutti_feature(kernels on "of another build: ${image}")
  elseif(CUDAToolkit_NVCC_EXECUTABLE)
    set(image ${tutti_BINARY_DIR}/kernels.fatbin)
    tutti_compile_kernels(${folder} ${image})
  else()
    tutti_feature(kernels off "no nvcc")
    return()
  endif()
  # A compiler cache does not see what .incbin reads; this header it does.
  set(digest ${tutti_BINARY_DIR}/kernels.digest.h)
  add_custom_command(OUTPUT ${digest} COMMAND ${CMAKE_COMMAND} -D IMAGE=${image} -D DIGEST=${digest}
      -P ${tutti_SOURCE_DIR}/cmake/kernel_digest.cmake
    DEPENDS ${image} ${tutti_SOURCE_DIR}/cmake/kernel_digest.cmake VERBATIM)
  set_property(SOURCE ${folder}/kernels.cc APPEND PROPERTY COMPILE_DEFINITIONS TUTTI_KERNEL_IMAGE="${image}"
    TUTTI_KERNEL_DIGEST="${digest}")
  set_property(SOURCE ${folder}/kernels.cc APPEND PROPERTY OBJECT_DEPENDS ${image} ${digest})
  set(TUTTI_KERNEL_IMAGE ${image} CACHE INTERNAL "The kernels of this build; empty: none")
endfunction()

function(tutti_compile_kernels folder image)
  list(JOIN TUTTI_CUDA_ARCHITECTURES ", sm_" names)
  set(codes "")
  foreach(architecture ${TUTTI_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET TUTTI_CUDA_ARCHITECTURES -1 last)
  list(APPEND codes -gencode arch=compute_${last},code=compute_${last})
  # No fused multiply-add where the source says multiply, then add: the bits are those of the host.
  add_custom_command(OUTPUT ${image}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr --compress-mode=size --threads 2
      -I${tutti_SOURCE_DIR} -I${tutti_SOURCE_DIR}/include ${codes} -fatbin -o ${image} ${folder}/kernels.cu
    DEPENDS ${folder}/kernels.cu ${folder}/device_block-inl.h ${folder}/walker-inl.h ${folder}/caller-inl.h ${folder}/reduce-inl.h ${folder}/codec-inl.h
      ${folder}/p2p-inl.h ${folder}/p2p.h ${folder}/program.h ${folder}/launch.h ${tutti_SOURCE_DIR}/collectives/executor/history.h
      ${tutti_SOURCE_DIR}/transport/device_window.h ${tutti_SOURCE_DIR}/include/tutti/types.hpp
      ${tutti_SOURCE_DIR}/base/even_share.h
    COMMENT "Compiling the kernels for sm_${names}" VERBATIM)
  tutti_feature(kernels on "nvcc ${CUDAToolkit_VERSION}, for sm_${names} and PTX")
endfunction()
