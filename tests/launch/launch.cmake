tutti_tests(launch)
# launch.CASE: launchers that exist, for real, on one host and between hosts that are network namespaces (launch.py).
tutti_program(test_launch_meet launch/meet.cc)
set_target_properties(test_launch_meet PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${tutti_BINARY_DIR}/tests)
add_dependencies(tests_launch test_launch_meet)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  tutti_feature("tests of launchers" off "no python3")
  return()
endif()
foreach(case open_mpi mpich torchrun_alone run_ranks open_mpi_on_two_hosts mpich_on_two_hosts torchrun_on_two_hosts
    srun_form_on_two_hosts by_hand_on_two_hosts ipv6_on_two_hosts unique_id_on_two_hosts open_mpi_from_a_third_host
    mpich_from_a_third_host wrong_secret wrong_address asked_from no_such_name wrong_interface no_listener firewall
    no_route port_in_use here_already other_size loopback_address own_name_means_loopback not_by_its_own_bridge
    not_by_its_own_name examples)
  add_test(NAME launch.${case} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/launch/launch.py ${case}
    ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
  set_tests_properties(launch.${case} PROPERTIES TIMEOUT 200 SKIP_RETURN_CODE 77 LABELS hosts)
endforeach()
if(TARGET all_reduce_perf)
  add_test(NAME launch.docs COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/launch/docs.py
    ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
  set_tests_properties(launch.docs PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS "hosts;slow" PROCESSORS 2)
endif()
