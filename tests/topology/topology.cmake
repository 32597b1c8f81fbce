# hwloc is also an independent witness of what discovery finds.
tutti_tests(topology)
target_compile_definitions(test_topology PRIVATE TUTTI_TEST_MACHINES="${CMAKE_CURRENT_LIST_DIR}/machines")
target_compile_definitions(test_collectives PRIVATE TUTTI_TEST_MACHINES="${CMAKE_CURRENT_LIST_DIR}/machines")
if(HWLOC_FOUND)
  target_compile_definitions(test_topology PRIVATE TUTTI_HAS_HWLOC)
  target_link_libraries(test_topology PRIVATE PkgConfig::HWLOC)
endif()
