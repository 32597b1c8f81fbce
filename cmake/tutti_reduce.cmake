# The reduction bodies: one file per instruction set, chosen at run time (collectives/reduce/body.h).
set(reduce_folder ${tutti_SOURCE_DIR}/collectives/reduce)
file(GLOB reduce_sources CONFIGURE_DEPENDS ${reduce_folder}/*.cc)
# No fused multiply-add where the source says multiply, then add: bodies must agree to the bit.
set_property(SOURCE ${reduce_sources} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
option(TUTTI_AVX "Compile the reduction bodies for AVX2 and AVX-512, where the processor is an x86" ON)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  tutti_feature(reduce on "generic body (${CMAKE_SYSTEM_PROCESSOR})")
elseif(NOT TUTTI_AVX)
  tutti_feature(reduce on "generic body (TUTTI_AVX is OFF)")
else()
  set_property(SOURCE ${reduce_folder}/body_avx2.cc APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mf16c)
  set_property(SOURCE ${reduce_folder}/body_avx512.cc APPEND PROPERTY COMPILE_OPTIONS
    -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's own AVX-512 header reads its deliberately undefined registers (GCC bug 105593).
    set_property(SOURCE ${reduce_folder}/body_avx512.cc APPEND PROPERTY COMPILE_OPTIONS
      -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  set_property(SOURCE ${reduce_folder}/reduce.cc APPEND PROPERTY COMPILE_DEFINITIONS TUTTI_REDUCE_X86)
  tutti_feature(reduce on "AVX-512, AVX2 and generic bodies, chosen at run time")
endif()

if(TUTTI_PERF)
  find_package(benchmark QUIET)
  if(benchmark_FOUND AND EXISTS ${tutti_SOURCE_DIR}/perf/reduce_bench.cc)
    tutti_program(reduce_bench ${tutti_SOURCE_DIR}/perf/reduce_bench.cc LINK benchmark::benchmark)
    tutti_feature(reduce_bench on "Google Benchmark ${benchmark_VERSION}")
  else()
    tutti_feature(reduce_bench off "Google Benchmark not found")
  endif()
endif()
