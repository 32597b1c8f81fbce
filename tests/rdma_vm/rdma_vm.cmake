# rdma_vm.suite: what needs RDMA devices, in a guest that has them. Skipped where the guest cannot be had.
# ./dev rdma-vm measures there, too.
find_program(TUTTI_BASH bash)
if(TUTTI_BASH AND TARGET test_transport_verbs_wire AND TARGET chaos AND NOT TUTTI_SANITIZE)
  add_test(NAME rdma_vm.suite
    COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/dev rdma-vm --built ${CMAKE_BINARY_DIR} tests/rdma_vm/suites.sh
      ${CMAKE_BINARY_DIR})
  set_tests_properties(rdma_vm.suite PROPERTIES LABELS "rdma_vm;slow" TIMEOUT 1200 SKIP_RETURN_CODE 77 PROCESSORS 2)
endif()
