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

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  add_test(NAME packaging.version COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tests/packaging/version.py
    ${CMAKE_SOURCE_DIR})
  set_tests_properties(packaging.version PROPERTIES LABELS "fast;packaging" TIMEOUT 60)
endif()
if(TARGET tutti AND TARGET all_reduce_perf AND TUTTI_BASH)
  add_test(NAME packaging.completion COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/tests/packaging/completion.sh
    ${CMAKE_BINARY_DIR}/bin ${CMAKE_SOURCE_DIR})
  set_tests_properties(packaging.completion PROPERTIES LABELS "fast;packaging" TIMEOUT 60)
endif()
# packaging.abi: the description is of what GCC says on x86-64.
find_program(TUTTI_ABIDIFF abidiff)
if(TUTTI_ABIDIFF AND TUTTI_BASH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_test(NAME packaging.abi COMMAND ${TUTTI_BASH} ${CMAKE_SOURCE_DIR}/tests/packaging/abi.sh ${CMAKE_SOURCE_DIR}
    ${CMAKE_CXX_COMPILER})
  set_tests_properties(packaging.abi PROPERTIES LABELS "fast;packaging" TIMEOUT 120)
endif()
