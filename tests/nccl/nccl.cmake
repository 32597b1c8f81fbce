# nccl.*: libtutti_nccl.so. What needs NVIDIA's header (from the package nvidia-nccl-cu13 in .venv or with the system's
# Python, or where TUTTI_NCCL_INCLUDE points to) is off without it.
tutti_tests(nccl LINK tutti_nccl EXCLUDE abi on_device)
add_library(nccl_fake_cuda SHARED ${CMAKE_CURRENT_LIST_DIR}/fake_cuda.cc)  # libcuda.so.1, of this test alone
set_target_properties(nccl_fake_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/nccl_fake_cuda)
target_link_libraries(test_nccl PRIVATE nccl_fake_cuda)
if(TUTTI_CUDA_FOUND)  # the library's objects in the test itself, which gives them a driver
  tutti_program(test_nccl_on_device ${CMAKE_CURRENT_LIST_DIR}/on_device_test.cc $<TARGET_OBJECTS:room_nccl>
    LINK tutti_test_support nccl_fake_cuda)
  set_target_properties(test_nccl_on_device PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME nccl.on_device COMMAND test_nccl_on_device)
  set_tests_properties(nccl.on_device PROPERTIES TIMEOUT 120 ENVIRONMENT "TUTTI_TIMEOUT=60s")
endif()
# These test host memory: with a GPU, ncclMemAlloc would give its memory.
set(nccl_environment "TUTTI_TIMEOUT=60s;CUDA_VISIBLE_DEVICES=")
set_tests_properties(nccl.communicators nccl.device nccl.errors nccl.processes PROPERTIES ENVIRONMENT "${nccl_environment}")
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND NOT TUTTI_SANITIZE)  # Python would have to begin with the sanitizer's run time
  add_test(NAME nccl.docs COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/docs.py
    $<TARGET_FILE:tutti_nccl> ${CMAKE_SOURCE_DIR})
  set_tests_properties(nccl.docs PROPERTIES TIMEOUT 60)
endif()

set(TUTTI_NCCL_HEADER_VERSION 2.28.9)
file(GLOB places ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
if(Python3_Interpreter_FOUND)  # beside PyTorch with CUDA
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import nvidia.nccl as n; print(list(n.__path__)[0] + '/include')"
    OUTPUT_VARIABLE place ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND places ${place})
endif()
find_path(TUTTI_NCCL_INCLUDE nccl.h HINTS ${places})
if(NOT TUTTI_NCCL_INCLUDE)
  tutti_feature("tests with NCCL's header" off "nccl.h not found: pip install nvidia-nccl-cu13==${TUTTI_NCCL_HEADER_VERSION} in .venv")
  return()
endif()
file(STRINGS ${TUTTI_NCCL_INCLUDE}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
string(REPLACE ";" "." version "${numbers}")
if(NOT version STREQUAL TUTTI_NCCL_HEADER_VERSION)
  tutti_feature("tests with NCCL's header" off "${TUTTI_NCCL_INCLUDE} is of ${version}; expected ${TUTTI_NCCL_HEADER_VERSION}")
  return()
endif()
tutti_feature("tests with NCCL's header" on "${TUTTI_NCCL_INCLUDE}")

set(here ${CMAKE_CURRENT_LIST_DIR})
# NCCL's header wants CUDA's, of which it needs next to nothing.
add_library(nccl_header INTERFACE)
target_include_directories(nccl_header SYSTEM INTERFACE ${TUTTI_NCCL_INCLUDE} ${here}/cuda)

tutti_program(test_nccl_abi ${here}/abi_test.cc LINK tutti_test_support tutti_nccl nccl_header)
add_test(NAME nccl.abi COMMAND test_nccl_abi)

# The program in C, on ours, and on a dummy of the same name for LD_PRELOAD.
set(dummy_folder ${CMAKE_BINARY_DIR}/tests/nccl_dummy)
add_library(nccl_dummy SHARED ${here}/dummy.cc)
target_include_directories(nccl_dummy PRIVATE ${CMAKE_SOURCE_DIR})
set_target_properties(nccl_dummy PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2 LIBRARY_OUTPUT_DIRECTORY ${dummy_folder})
find_library(TUTTI_LIBM m)
foreach(on nccl dummy)
  add_executable(nccl_program_${on} ${here}/program.c ${here}/program_collectives.c ${here}/program_sequence.c)
  set_target_properties(nccl_program_${on} PROPERTIES C_STANDARD 99 C_EXTENSIONS ON)  # gnu99: fork, pipe
  target_link_libraries(nccl_program_${on} PRIVATE nccl_header Threads::Threads ${TUTTI_LIBM})
endforeach()
target_link_libraries(nccl_program_nccl PRIVATE tutti_nccl)
target_link_libraries(nccl_program_dummy PRIVATE nccl_dummy)
set_target_properties(test_nccl_abi nccl_program_nccl nccl_program_dummy PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

set(nccl_tests nccl.abi)
foreach(how init_all threads processes sequence)
  foreach(ranks RANGE 1 4)
    add_test(NAME nccl.program.${how}.${ranks} COMMAND nccl_program_nccl ${how} ${ranks})
    list(APPEND nccl_tests nccl.program.${how}.${ranks})
  endforeach()
endforeach()
find_program(TUTTI_BASH bash)
if(TUTTI_BASH AND NOT TUTTI_SANITIZE)  # a sanitizer's run time wants to be the first library
  add_test(NAME nccl.preload COMMAND ${TUTTI_BASH} ${here}/preload.sh
    $<TARGET_FILE:nccl_program_dummy> $<TARGET_FILE:tutti_nccl>)
  list(APPEND nccl_tests nccl.preload)
endif()
if(Python3_Interpreter_FOUND AND NOT TUTTI_SANITIZE)  # a sanitizer's run time shows symbols of its own
  add_test(NAME nccl.symbols COMMAND ${Python3_EXECUTABLE} -B ${here}/symbols.py $<TARGET_FILE:tutti_nccl> ${TUTTI_NCCL_INCLUDE})
  list(APPEND nccl_tests nccl.symbols)
endif()
set_tests_properties(${nccl_tests} PROPERTIES TIMEOUT 120 ENVIRONMENT "${nccl_environment}")
