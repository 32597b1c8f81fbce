# The driver's parts, and the programs as processes: on Tutti, and (label baseline) on what was found.
tutti_tests(perf LINK tutti_perf_driver LABELS perf)
target_sources(test_perf_ordered_communicator PRIVATE
  ${CMAKE_SOURCE_DIR}/collectives/baseline/plugins/ordered_communicator.cc)
target_link_libraries(test_perf_throttled_communicator PRIVATE tutti_perf_throttled)
if(TARGET overlap_bench)
  add_dependencies(test_perf_training_programs overlap_bench memory_bench)
endif()
foreach(test programs baselines)
  foreach(collective all_reduce reduce_scatter all_gather broadcast reduce alltoall gather scatter sendrecv)
    add_dependencies(test_perf_${test} ${collective}_perf)
  endforeach()
endforeach()
foreach(baseline ${TUTTI_BASELINES})
  add_dependencies(test_perf_baselines tutti_baseline_${baseline})
endforeach()
add_dependencies(test_perf_baselines tutti_nccl)
get_filename_component(nccl_library_folder "${TUTTI_NCCL_INCLUDE}/../lib" ABSOLUTE)
target_compile_definitions(test_perf_baselines PRIVATE TUTTI_NCCL_LIBRARY_FOLDER="${nccl_library_folder}")
set_tests_properties(perf.baselines PROPERTIES LABELS "perf;baseline")

find_program(TUTTI_BASH bash)
if(TUTTI_BASH)  # every step of ./dev gpu is there, as far as that can be said without a GPU
  add_test(NAME perf.gpu_dry_run COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/dev gpu --dry-run)
  set_tests_properties(perf.gpu_dry_run PROPERTIES LABELS perf PASS_REGULAR_EXPRESSION
    "gpu.py .*bench.*libtutti_nccl.so .*beside_one_process.py.*nccl_tests.py.*compute-sanitizer.*run_in_ranks.py.*train_gpt")
endif()

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  foreach(name goals compare gpu)
    add_test(NAME perf.${name} COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/${name}_test.py
      ${CMAKE_SOURCE_DIR}/perf)
    set_tests_properties(perf.${name} PROPERTIES LABELS perf)
  endforeach()
  add_test(NAME perf.gpu_stages COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/gpu_stages_test.py ${CMAKE_SOURCE_DIR})
  set_tests_properties(perf.gpu_stages PROPERTIES LABELS perf TIMEOUT 120)
endif()
