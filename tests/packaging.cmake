# packaging.examples: what a user gets from `cmake --install`, built and run. A library with a sanitizer in it would ask
# the same of its users' programs, so this is for plain builds only.
find_program(TUTTI_BASH bash)
if(TUTTI_EXAMPLES AND TUTTI_BASH AND NOT TUTTI_SANITIZE)
  add_test(NAME packaging.examples COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/tests/packaging/examples.sh
    ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR} ${CMAKE_COMMAND})
  set_tests_properties(packaging.examples PROPERTIES LABELS "slow;packaging" TIMEOUT 300)
endif()
if(TARGET tutti_training AND TUTTI_EXAMPLES AND TUTTI_BASH AND NOT TUTTI_SANITIZE)
  add_test(NAME packaging.training_examples COMMAND ${TUTTI_BASH}
    ${CMAKE_SOURCE_DIR}/tests/packaging/training_examples.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR} ${CMAKE_COMMAND}
    ${Torch_DIR}/../../..)
  set_tests_properties(packaging.training_examples PROPERTIES LABELS "slow;packaging;training" TIMEOUT 900)
endif()
