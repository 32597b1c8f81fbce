# The driver's parts, and the programs as processes: on Tutti, and (label baseline) on what was found.
tutti_tests(perf LINK tutti_perf_driver tutti_perf_throttled LABELS perf)
target_sources(test_perf PRIVATE ${CMAKE_SOURCE_DIR}/collectives/baseline/plugins/ordered_communicator.cc)
set(perf_programs tutti_nccl)
foreach(collective all_reduce reduce_scatter all_gather broadcast reduce alltoall gather scatter sendrecv)
  list(APPEND perf_programs ${collective}_perf)
endforeach()
foreach(baseline ${TUTTI_BASELINES})
  list(APPEND perf_programs tutti_baseline_${baseline})
endforeach()
if(TARGET overlap_bench)
  list(APPEND perf_programs overlap_bench memory_bench step_checks_bench)
endif()
add_dependencies(test_perf ${perf_programs})
if(TUTTI_CUDA_FOUND AND NOT TUTTI_SANITIZE)  # not with the library twice in a process that a sanitizer watches
  # GPUs and an NCCL for programs that look for them: libcuda.so.1 and libnccl.so.2.
  add_library(perf_fake_libcuda SHARED ${CMAKE_CURRENT_LIST_DIR}/nccl/fake_libcuda.cc)
  set_target_properties(perf_fake_libcuda PROPERTIES OUTPUT_NAME cuda)
  target_link_libraries(perf_fake_libcuda PRIVATE tutti_test_support)
  target_link_options(perf_fake_libcuda PRIVATE LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/nccl/fake_libcuda.map)
  add_library(perf_nccl_stand_in SHARED ${CMAKE_CURRENT_LIST_DIR}/nccl/stand_in.cc)
  set_target_properties(perf_nccl_stand_in PROPERTIES OUTPUT_NAME nccl)
  target_include_directories(perf_nccl_stand_in PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(perf_nccl_stand_in PRIVATE TUTTI_NCCL_FILE="$<TARGET_FILE:tutti_nccl>")
  target_link_libraries(perf_nccl_stand_in PRIVATE tutti_static)
  target_link_options(perf_nccl_stand_in PRIVATE LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/nccl/stand_in.map)
  foreach(stand_in perf_fake_libcuda:1 perf_nccl_stand_in:2)
    string(REPLACE ":" ";" words ${stand_in})
    list(GET words 0 target)
    list(GET words 1 version)
    set_target_properties(${target} PROPERTIES SUFFIX .so.${version} NO_SONAME ON
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/perf_stand_ins)
    add_dependencies(test_perf ${target})
  endforeach()
  set(stand_ins ${CMAKE_BINARY_DIR}/tests/perf_stand_ins)
  set_tests_properties(perf.nccl_streams PROPERTIES TIMEOUT 120 ENVIRONMENT "LD_LIBRARY_PATH=${stand_ins};FAKE_GPUS=2")
  # What ./dev gpu does on a machine with one GPU, as far as one that is none goes: its tests of device memory,
  foreach(test communicator groups residency communicator_processes far_processes)
    add_test(NAME device.machine.${test} COMMAND test_device --file=${test})
    set_tests_properties(device.machine.${test} PROPERTIES TIMEOUT 900
      ENVIRONMENT "TUTTI_TEST_DRIVER=machine;LD_LIBRARY_PATH=${stand_ins};FAKE_GPUS=1")
  endforeach()
  # and its checks and benchmarks, on two of them so that NCCL has a part in it.
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND AND TARGET tutti)
    foreach(command check bench)
      add_test(NAME perf.gpu_${command}_on_stand_ins COMMAND Python3::Interpreter -B
        ${CMAKE_CURRENT_LIST_DIR}/gpu_on_stand_ins.py ${CMAKE_SOURCE_DIR}/perf/gpu.py ${CMAKE_BINARY_DIR}/bin ${command})
      set_tests_properties(perf.gpu_${command}_on_stand_ins PROPERTIES LABELS "perf;slow" TIMEOUT 600
        ENVIRONMENT "LD_LIBRARY_PATH=${stand_ins};FAKE_GPUS=2")
    endforeach()
  endif()
endif()
target_compile_definitions(test_perf PRIVATE TUTTI_NCCL_LIBRARY_FOLDER="${nccl_library_folder}")
set_tests_properties(perf.baselines PROPERTIES LABELS "perf;baseline")

find_program(TUTTI_BASH bash)
if(TUTTI_BASH)  # every step of ./dev gpu is there, as far as that can be said without a GPU
  add_test(NAME perf.gpu_dry_run COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/dev gpu --dry-run)
  set_tests_properties(perf.gpu_dry_run PROPERTIES LABELS perf PASS_REGULAR_EXPRESSION
    "--target-processes all.*gpu.py bench.*run_in_ranks.py.*libtutti_nccl.so .*beside_one_process.py.*nccl_tests.py.*train_gpt.*gpu.py bench.*--threads 1 3")
endif()

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  foreach(name goals compare gpu)
    add_test(NAME perf.${name} COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/${name}_test.py
      ${CMAKE_SOURCE_DIR}/perf)
    set_tests_properties(perf.${name} PROPERTIES LABELS perf)
  endforeach()
  add_test(NAME perf.gpu_stages COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/gpu_stages_test.py ${CMAKE_SOURCE_DIR})
  add_test(NAME perf.thin_nccl COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/thin_nccl_test.py ${CMAKE_SOURCE_DIR})
  set_tests_properties(perf.gpu_stages perf.thin_nccl PROPERTIES LABELS perf TIMEOUT 120)
endif()
