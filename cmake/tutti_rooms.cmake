# One target per room, and two libraries made of all rooms.

set(TUTTI_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in an inlined std::string operator+ that cannot be (its bug 105651).
  list(APPEND TUTTI_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(TUTTI_SANITIZE STREQUAL "address")
  set(TUTTI_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
elseif(TUTTI_SANITIZE STREQUAL "thread")
  set(TUTTI_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer -g1)
elseif(TUTTI_SANITIZE)
  message(FATAL_ERROR "TUTTI_SANITIZE is '${TUTTI_SANITIZE}'; expected address, thread or nothing")
endif()
add_compile_options(${TUTTI_WARNINGS} ${TUTTI_SANITIZE_FLAGS})
add_link_options(${TUTTI_SANITIZE_FLAGS})

# tutti_cold(target): what runs a few times in a job, such as parsing, is compiled in half the time and runs a little slower.
function(tutti_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

set_property(GLOBAL PROPERTY TUTTI_ROOMS "")

# Every .cc of the folder (not of its sub-folders) is an object of the room.
function(tutti_room folder)
  file(GLOB sources CONFIGURE_DEPENDS ${tutti_SOURCE_DIR}/${folder}/*.cc)
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" name ${folder})
  add_library(room_${name} OBJECT ${sources})
  target_include_directories(room_${name} PUBLIC ${tutti_SOURCE_DIR} ${tutti_SOURCE_DIR}/include)
  target_compile_definitions(room_${name} PRIVATE TUTTI_BUILDING)
  target_link_libraries(room_${name} PUBLIC tutti_third_party)
  set_target_properties(room_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  tutti_unity(room_${name} ${tutti_SOURCE_DIR} ${sources})
  set_property(GLOBAL APPEND PROPERTY TUTTI_ROOMS room_${name})
endfunction()

function(tutti_libraries)
  get_property(rooms GLOBAL PROPERTY TUTTI_ROOMS)
  set(objects "")
  foreach(room ${rooms})
    list(APPEND objects $<TARGET_OBJECTS:${room}>)
  endforeach()
  foreach(kind shared static)
    string(TOUPPER ${kind} KIND)
    add_library(tutti_${kind} ${KIND} ${objects})
    set_target_properties(tutti_${kind} PROPERTIES OUTPUT_NAME tutti EXPORT_NAME ${kind}
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE CXX)
    target_include_directories(tutti_${kind} PUBLIC
      $<BUILD_INTERFACE:${tutti_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
    target_compile_features(tutti_${kind} PUBLIC cxx_std_20)
    add_library(tutti::${kind} ALIAS tutti_${kind})
  endforeach()
  target_link_libraries(tutti_shared PRIVATE $<BUILD_INTERFACE:tutti_third_party>)
  target_link_libraries(tutti_static PUBLIC $<BUILD_INTERFACE:tutti_third_party>)
  include(tutti_install OPTIONAL)
endfunction()

# tutti_program(name sources... [LINK libraries...]): a binary in build/bin that sees the internals.
function(tutti_program name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${tutti_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tutti_static ${arg_LINK})
endfunction()

# tutti_test_program(name "sources..." "libraries..." [BYTES n]): in build/tests, in units of so many bytes (tutti_unity). Tests
# are quick to run and slow to optimise.
function(tutti_test_program name sources libraries)
  tutti_program(${name} ${sources} LINK tutti_test_support ${libraries})
  tutti_unity(${name} ${tutti_SOURCE_DIR} ${sources} ${ARGN})
  tutti_cold(${name})
  if(TUTTI_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)  # half of the time that its compilation takes with checks in the code
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${tutti_BINARY_DIR}/tests)
endfunction()

# tutti_tests(folder [LINK libraries...] [LABELS labels...] [TIMEOUT seconds] [EXCLUDE names...] [ALONE names...]
#             [UNIT_BYTES n]):
# all tests/<folder>/<x>_test.cc become the program test_<folder>, and each of them is the ctest "<folder>.<x>", which runs
# the tests of that file. The same holds for tests/<folder>/<sub-folder>/<x>_test.cc, so <x> is unique below tests/<folder>.
# Those that are ALONE are programs of their own, test_<folder>_<x>: their tests are written in a header
# that several of them include. <x>_slow_test.cc is labelled slow.
# The target tests_<folder> is all that these tests need.
function(tutti_tests folder)
  cmake_parse_arguments(arg "" "TIMEOUT;UNIT_BYTES" "LINK;LABELS;EXCLUDE;ALONE" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  set(here ${tutti_SOURCE_DIR}/tests/${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${here}/*_test.cc ${here}/*/*_test.cc)
  list(SORT sources COMPARE FILE_BASENAME)
  set(together "")
  string(REPLACE "/" "_" program test_${folder})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" stem ${stem})
    if(stem IN_LIST arg_EXCLUDE)
      continue()
    elseif(stem IN_LIST arg_ALONE)
      tutti_test_program(${program}_${stem} ${source} "${arg_LINK}")
      add_test(NAME ${folder}.${stem} COMMAND ${program}_${stem})
    else()
      list(APPEND together ${source})
      add_test(NAME ${folder}.${stem} COMMAND ${program} --file=${stem})
    endif()
    set(labels ${arg_LABELS})
    if(stem MATCHES "_slow$")
      list(APPEND labels slow)
    endif()
    set_tests_properties(${folder}.${stem} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}"
      SKIP_REGULAR_EXPRESSION "tutti-test: none of these tests could run here")
  endforeach()
  set(programs ${arg_ALONE})
  list(TRANSFORM programs PREPEND ${program}_)
  if(together)
    tutti_test_program(${program} "${together}" "${arg_LINK}" BYTES ${arg_UNIT_BYTES})
    list(APPEND programs ${program})
  endif()
  string(REPLACE "/" "_" room tests_${folder})
  add_custom_target(${room} DEPENDS ${programs})
endfunction()
