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
