# hwloc is also an independent witness of what discovery finds.
tutti_tests(topology)
target_compile_definitions(test_topology_text PRIVATE TUTTI_TEST_MACHINES="${CMAKE_CURRENT_LIST_DIR}/machines")
target_compile_definitions(test_topology_discover PRIVATE TUTTI_TEST_MACHINES="${CMAKE_CURRENT_LIST_DIR}/machines")
target_compile_definitions(test_collectives_topology PRIVATE TUTTI_TEST_MACHINES="${CMAKE_CURRENT_LIST_DIR}/machines")
if(HWLOC_FOUND)
  target_compile_definitions(test_topology_discover PRIVATE TUTTI_HAS_HWLOC)
  target_link_libraries(test_topology_discover PRIVATE PkgConfig::HWLOC)
endif()
