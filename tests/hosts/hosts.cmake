# Tests between hosts, which are network namespaces here (scripts/hosts.py). Where those are not allowed they are skipped.
if(NOT TUTTI_CUDA_FOUND)
  set(hosts_without device)
endif()
tutti_tests(hosts LABELS hosts TIMEOUT 600 EXCLUDE ${hosts_without} ALONE wire)
foreach(program test_hosts test_hosts_wire)
  target_compile_definitions(${program} PRIVATE TUTTI_HOSTS_PROGRAM="${CMAKE_SOURCE_DIR}/scripts/hosts.py")
endforeach()
