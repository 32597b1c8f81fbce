# The campaign of random faults: ./dev chaos. A few scenarios of it are a test.
find_package(CLI11 QUIET)  # a folder sees the imported target only where it looked for it
if(NOT CLI11_FOUND OR NOT TARGET tutti_perf_driver)
  return()
endif()
set(sources chaos/chaos.cc chaos/scenario.cc chaos/ranks.cc chaos/judge.cc)
if(TARGET tutti_training)
  add_executable(chaos ${sources} chaos/training.cc)
  target_link_libraries(chaos PRIVATE tutti_training CLI11::CLI11)
  tutti_torch_program(chaos)
else()
  add_executable(chaos ${sources} chaos/no_training.cc)
  target_link_libraries(chaos PRIVATE tutti_static CLI11::CLI11)
endif()
target_include_directories(chaos PRIVATE ${CMAKE_SOURCE_DIR})
add_test(NAME faults.chaos COMMAND chaos --count 40 --seed 1)
set_tests_properties(faults.chaos PROPERTIES TIMEOUT 300)

find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND TARGET tutti)
  # Each option of each program with odd values; of some two thousand cases each seventh.
  add_test(NAME faults.odd_options COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/faults/odd_options.py
    ${CMAKE_BINARY_DIR}/bin --every 7)
  set_tests_properties(faults.odd_options PROPERTIES TIMEOUT 600 LABELS slow)
endif()
