# The driver's parts, and the programs as processes: on Tutti, and (label baseline) on what was found.
tutti_tests(perf LINK tutti_perf_driver LABELS perf)
target_sources(test_perf_ordered_communicator PRIVATE
  ${CMAKE_SOURCE_DIR}/collectives/baseline/plugins/ordered_communicator.cc)
target_link_libraries(test_perf_throttled_communicator PRIVATE tutti_perf_throttled)
foreach(test programs baselines)
  foreach(collective all_reduce reduce_scatter all_gather broadcast reduce alltoall gather scatter sendrecv)
    add_dependencies(test_perf_${test} ${collective}_perf)
  endforeach()
endforeach()
foreach(baseline ${TUTTI_BASELINES})
  add_dependencies(test_perf_baselines tutti_baseline_${baseline})
endforeach()
set_tests_properties(perf.baselines PROPERTIES LABELS "perf;baseline")

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  foreach(name goals compare)
    add_test(NAME perf.${name} COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/${name}_test.py
      ${CMAKE_SOURCE_DIR}/perf)
    set_tests_properties(perf.${name} PROPERTIES LABELS perf)
  endforeach()
endif()
