# The component `tools`: the programs that users want, with a manual page and bash's completion for each, both made of what
# the program says of itself (--help). `cmake --build . --target tutti_tools` makes all of it.
include(GNUInstallDirs)
set(tools "")
foreach(tool tutti all_reduce_perf reduce_scatter_perf all_gather_perf broadcast_perf reduce_perf alltoall_perf gather_perf
    scatter_perf sendrecv_perf)
  if(TARGET ${tool})
    list(APPEND tools ${tool})
  endif()
endforeach()
add_custom_target(tutti_tools DEPENDS ${tools})
if(tools)
  install(TARGETS ${tools} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools EXCLUDE_FROM_ALL)
endif()
if(TARGET tutti_baseline_nccl)  # where `--backend nccl` looks for it, and the only baseline that needs no other package
  add_dependencies(tutti_tools tutti_baseline_nccl)
  install(TARGETS tutti_baseline_nccl LIBRARY DESTINATION lib/tutti COMPONENT tools EXCLUDE_FROM_ALL)
endif()

find_program(TUTTI_HELP2MAN help2man)
find_program(TUTTI_GZIP gzip)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT TUTTI_HELP2MAN OR NOT TUTTI_GZIP OR NOT Python3_Interpreter_FOUND)
  tutti_feature("manual pages" off "help2man, gzip or python3 not found")
  return()
endif()
tutti_feature("manual pages" on "by the target tutti_tools")

set(completion ${tutti_SOURCE_DIR}/scripts/completion.py)
set(help_for_man ${tutti_SOURCE_DIR}/scripts/help_for_man.sh)
foreach(tool ${tools})
  if(tool STREQUAL "tutti")
    set(about "collective communication: proofs, plans and what this machine offers")
  else()
    string(REPLACE "_perf" "" collective ${tool})
    set(about "measures ${collective} between processes, threads and GPUs")
  endif()
  set(page ${tutti_BINARY_DIR}/man/${tool}.1)
  set(words ${tutti_BINARY_DIR}/completions/${tool})
  add_custom_command(OUTPUT ${page}.gz ${words}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${tutti_BINARY_DIR}/man ${tutti_BINARY_DIR}/completions
    COMMAND ${TUTTI_HELP2MAN} --no-info --version-string=${PROJECT_VERSION} --source=Tutti --name=${about} --output=${page}
      "sh ${help_for_man} $<TARGET_FILE:${tool}>"
    COMMAND ${TUTTI_GZIP} --best --no-name --force ${page}
    COMMAND ${Python3_EXECUTABLE} ${completion} $<TARGET_FILE:${tool}> ${words}
    DEPENDS ${tool} ${completion} ${help_for_man} COMMENT "What ${tool} says of itself" VERBATIM)
  add_custom_target(tutti_tool_${tool} DEPENDS ${page}.gz ${words})
  add_dependencies(tutti_tools tutti_tool_${tool})
  install(FILES ${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools EXCLUDE_FROM_ALL)
  install(FILES ${words} DESTINATION share/bash-completion/completions COMPONENT tools EXCLUDE_FROM_ALL)
endforeach()
