# tutti_torch_package: the Python package, built and installed by pip, as a user's is, into build/torch_backend/site. It takes the
# library that is built here; nothing is installed in the Python environment.
find_program(python_of_torch python PATHS ${Torch_DIR}/../../../../../../../bin NO_DEFAULT_PATH)
if(NOT python_of_torch)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(python_of_torch ${Python3_EXECUTABLE})
endif()
set(wanted torch scikit_build_core)
set(probe "import importlib.util, sys; print(' '.join(n for n in sys.argv[1:] if not importlib.util.find_spec(n)))")
execute_process(COMMAND ${python_of_torch} -c "${probe}" ${wanted} OUTPUT_VARIABLE lacking
  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed OR lacking)
  tutti_feature("PyTorch package" off "${python_of_torch} lacks: ${lacking}")
  return()
endif()
if(TUTTI_SANITIZE)
  tutti_feature("PyTorch package" off "a sanitizer does not go into Python's process")
  return()
endif()
tutti_feature("PyTorch package" on "${python_of_torch}")

set(package ${CMAKE_CURRENT_LIST_DIR})
set(room ${CMAKE_BINARY_DIR}/torch_backend)
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${package}/csrc/* ${package}/tutti_torch/* ${package}/cmake/*)
add_custom_command(OUTPUT ${room}/installed
  COMMAND ${CMAKE_COMMAND} -E env CMAKE_BUILD_PARALLEL_LEVEL=2
    CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} CMAKE_C_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
    ${python_of_torch} -m pip --disable-pip-version-check install --quiet --no-deps --no-index --no-build-isolation
    --upgrade --target ${room}/site --config-settings build-dir=${room}/build
    --config-settings cmake.define.TUTTI_TORCH_LIBRARY=$<TARGET_FILE:tutti_static> ${package}
  COMMAND ${CMAKE_COMMAND} -E touch ${room}/installed
  DEPENDS ${sources} ${package}/CMakeLists.txt ${package}/pyproject.toml tutti_static
  COMMENT "The PyTorch backend: pip install into build/torch_backend/site" USES_TERMINAL VERBATIM)
add_custom_target(tutti_torch_package ALL DEPENDS ${room}/installed)
