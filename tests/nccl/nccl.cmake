# nccl.*: libtutti_nccl.so. What needs NVIDIA's headers (headers.cmake finds them) is off without them.
include(${CMAKE_CURRENT_LIST_DIR}/headers.cmake)
tutti_tests(nccl LINK tutti_nccl EXCLUDE abi on_device)
target_sources(test_nccl PRIVATE ${CMAKE_SOURCE_DIR}/nccl/progress.cc)  # comm_parts: the library exports NCCL's functions only
add_library(nccl_fake_cuda SHARED ${CMAKE_CURRENT_LIST_DIR}/fake_cuda.cc)  # libcuda.so.1, of this test alone
set_target_properties(nccl_fake_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/nccl_fake_cuda)
target_link_libraries(test_nccl PRIVATE nccl_fake_cuda)
if(TUTTI_CUDA_FOUND)  # the library's objects in the test itself, which gives them a driver
  tutti_program(test_nccl_on_device ${CMAKE_CURRENT_LIST_DIR}/on_device_test.cc $<TARGET_OBJECTS:room_nccl>
    LINK tutti_test_support nccl_fake_cuda)
  set_target_properties(test_nccl_on_device PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(tests_nccl test_nccl_on_device)
  add_test(NAME nccl.on_device COMMAND test_nccl_on_device)
  set_tests_properties(nccl.on_device PROPERTIES TIMEOUT 120 ENVIRONMENT "TUTTI_TIMEOUT=60s")
endif()
# These test host memory: with a GPU, ncclMemAlloc would give its memory.
set(nccl_environment "TUTTI_TIMEOUT=60s;CUDA_VISIBLE_DEVICES=")
set_tests_properties(nccl.call_configs nccl.communicators nccl.device nccl.errors nccl.grow nccl.parameters
  nccl.processes nccl.suspend PROPERTIES ENVIRONMENT "${nccl_environment}")
if(Python3_Interpreter_FOUND AND NOT TUTTI_SANITIZE)  # Python would have to begin with the sanitizer's run time
  add_test(NAME nccl.docs COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/docs.py
    $<TARGET_FILE:tutti_nccl> ${CMAKE_SOURCE_DIR})
  set_tests_properties(nccl.docs PROPERTIES TIMEOUT 60)
endif()

# The program in C, on ours, and on a dummy of the same name for LD_PRELOAD.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(dummy_folder ${CMAKE_BINARY_DIR}/tests/nccl_dummy)
add_library(nccl_dummy SHARED ${here}/dummy.cc)
target_include_directories(nccl_dummy PRIVATE ${CMAKE_SOURCE_DIR})
set_target_properties(nccl_dummy PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2 LIBRARY_OUTPUT_DIRECTORY ${dummy_folder})
find_library(TUTTI_LIBM m)
find_program(TUTTI_BASH bash)

function(nccl_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 ENVIRONMENT "${nccl_environment}")
endfunction()

# nccl_tests_with(VERSION folder RANKS...): all that a header of NCCL is compiled with.
function(nccl_tests_with version include)
  # NCCL's header wants CUDA's, of which it needs next to nothing.
  add_library(nccl_header_${version} INTERFACE)
  target_include_directories(nccl_header_${version} SYSTEM INTERFACE ${include} ${here}/cuda)

  tutti_program(test_nccl_abi_${version} ${here}/abi_test.cc LINK tutti_test_support tutti_nccl nccl_header_${version})
  nccl_test(nccl.abi.${version} test_nccl_abi_${version})
  foreach(on nccl dummy)
    set(program nccl_program_${on}_${version})
    add_executable(${program} ${here}/program.c ${here}/program_collectives.c ${here}/program_newer.c
      ${here}/program_sequence.c)
    set_target_properties(${program} PROPERTIES C_STANDARD 99 C_EXTENSIONS ON)  # gnu99: fork, pipe
    target_link_libraries(${program} PRIVATE tutti_${on} nccl_header_${version} Threads::Threads ${TUTTI_LIBM})
  endforeach()
  add_dependencies(tests_nccl test_nccl_abi_${version} nccl_program_nccl_${version} nccl_program_dummy_${version})
  set_target_properties(test_nccl_abi_${version} nccl_program_nccl_${version} nccl_program_dummy_${version} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(how init_all threads processes sequence)
    foreach(ranks ${ARGN})
      nccl_test(nccl.program.${version}.${how}.${ranks} nccl_program_nccl_${version} ${how} ${ranks})
    endforeach()
  endforeach()
  if(TUTTI_SANITIZE OR NOT TUTTI_BASH OR NOT Python3_Interpreter_FOUND)  # a sanitizer's run time wants to be first
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/tests/nccl_every_function_${version}.c)
  add_custom_command(OUTPUT ${source} VERBATIM
    COMMAND ${Python3_EXECUTABLE} -B ${here}/every_function.py ${include} ${source}
    DEPENDS ${here}/every_function.py ${here}/header_functions.py ${include}/nccl.h)
  add_executable(nccl_every_function_${version} ${source})
  target_compile_options(nccl_every_function_${version} PRIVATE -fno-builtin)
  target_link_libraries(nccl_every_function_${version} PRIVATE nccl_dummy ${CMAKE_DL_LIBS})
  set_target_properties(nccl_every_function_${version} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(tests_nccl nccl_every_function_${version})
  nccl_test(nccl.preload.${version} ${TUTTI_BASH} ${here}/preload.sh $<TARGET_FILE:nccl_program_dummy_${version}>
    $<TARGET_FILE:nccl_every_function_${version}> $<TARGET_FILE:tutti_nccl>)
endfunction()

add_library(tutti_dummy ALIAS nccl_dummy)  # beside tutti_nccl
set(nccl_headers "")
set(nccl_library_folder "")  # of NVIDIA's own libnccl.so.2, where it came with a header
foreach(version 2.28.9 2.32.3)
  nccl_header(${version} include)
  if(NOT include)
    tutti_feature("tests with NCCL ${version}'s header" off "nccl.h not found: ./dev test fetches it")
    continue()
  endif()
  tutti_feature("tests with NCCL ${version}'s header" on "${include}")
  if(version STREQUAL "2.32.3")
    nccl_tests_with(${version} ${include} 1 2 3 4)
  else()
    nccl_tests_with(${version} ${include} 3)
  endif()
  list(APPEND nccl_headers ${version}=${include})
  if(EXISTS ${include}/../lib/libnccl.so.2)
    get_filename_component(nccl_library_folder ${include}/../lib ABSOLUTE)
  endif()
endforeach()
if(nccl_headers AND Python3_Interpreter_FOUND AND NOT TUTTI_SANITIZE)  # a sanitizer's run time shows symbols of its own
  nccl_test(nccl.symbols ${Python3_EXECUTABLE} -B ${here}/symbols.py $<TARGET_FILE:tutti_nccl> ${nccl_headers})
endif()
