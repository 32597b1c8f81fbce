# Checks of the tree itself (docs/contributing.md lists them), and house.planted, which checks these.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  tutti_feature("house checks" off "no python3")
  return()
endif()
tutti_feature("house checks" on "python3 ${Python3_VERSION}")

foreach(check includes classes files glossary links one_call picture words std_headers)
  add_test(NAME house.${check} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tests/house/${check}.py ${CMAKE_SOURCE_DIR})
  set_tests_properties(house.${check} PROPERTIES LABELS "fast;house" TIMEOUT 60)
endforeach()
add_test(NAME house.planted COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tests/house/planted.py)
set_tests_properties(house.planted PROPERTIES LABELS "fast;house" TIMEOUT 60)

# A sanitizer's run time shows symbols of its own.
if(NOT TUTTI_SANITIZE)
  add_test(NAME house.symbols COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tests/house/symbols.py
    $<TARGET_FILE:tutti_shared> ${CMAKE_SOURCE_DIR}/include/tutti)
  set_tests_properties(house.symbols PROPERTIES LABELS "fast;house" TIMEOUT 60)
endif()
