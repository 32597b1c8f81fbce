# The `tutti` program as a user calls it.
add_test(NAME cli.verify COMMAND tutti verify --max-ranks 12)
set_tests_properties(cli.verify PROPERTIES PASS_REGULAR_EXPRESSION " 0 wrong," TIMEOUT 120)
set(golden ${CMAKE_SOURCE_DIR}/tests/plan/golden)
add_test(NAME cli.verify_file COMMAND tutti verify ${golden}/all_gather_bruck_3.txt)
set_tests_properties(cli.verify_file PROPERTIES PASS_REGULAR_EXPRESSION "all_gather_bruck_3.txt: OK")
add_test(NAME cli.verify_file_broken COMMAND tutti verify ${CMAKE_CURRENT_LIST_DIR}/no_signal.plan)
set_tests_properties(cli.verify_file_broken PROPERTIES PASS_REGULAR_EXPRESSION "no_signal.plan: 1 round.s.: .*rank")
add_test(NAME cli.verify_no_plan COMMAND tutti verify ${CMAKE_SOURCE_DIR}/README.md)
set_tests_properties(cli.verify_no_plan PROPERTIES PASS_REGULAR_EXPRESSION "tutti verify: .*README.md: .*line [0-9]+")
add_test(NAME cli.plan COMMAND tutti plan --collective all_reduce --algorithm ring --ranks 4 --bytes 1M
  --svg ${CMAKE_BINARY_DIR}/tests/ring.svg)
set_tests_properties(cli.plan PROPERTIES PASS_REGULAR_EXPRESSION "puts 1572864 bytes in 6 messages")  # 2 * 3/4 MiB
add_test(NAME cli.unknown_algorithm COMMAND tutti plan --collective all_reduce --algorithm unknown)
set_tests_properties(cli.unknown_algorithm PROPERTIES PASS_REGULAR_EXPRESSION "no algorithm has these names")
add_test(NAME cli.root_out_of_bounds COMMAND tutti plan --collective broadcast --algorithm chain --ranks 4 --root 4)
set_tests_properties(cli.root_out_of_bounds PROPERTIES WILL_FAIL TRUE)
# What a build without plug-ins or CPUs of a kind may lack is not looked for.
function(tutti_cli_test name expected)
  add_test(NAME cli.${name} COMMAND ${ARGN})
  set_tests_properties(cli.${name} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}" TIMEOUT 30)
endfunction()
set(machines ${CMAKE_SOURCE_DIR}/tests/topology/machines)
set(with ${CMAKE_COMMAND} -E env)
tutti_cli_test(info "tutti ${PROJECT_VERSION}.*reductions: .*cross-memory access to plain memory: o.*topology.*host 0"
  tutti info)
tutti_cli_test(info_gpus "\nGPUs.*device memory between hosts: (from GPU to GPU|through pinned memory .no GPUDirect: .)" tutti info)
tutti_cli_test(info_json "\"cross_memory\": .*\"tutti_topology\": 1" tutti info --json)
tutti_cli_test(info_network "address that other hosts are told: 127.0.0.1 on lo .by TUTTI_INTERFACE.\n  interfaces: " ${with}
  TUTTI_INTERFACE=127.0.0.0/8 $<TARGET_FILE:tutti> info)
tutti_cli_test(info_networks "networks between hosts .TUTTI_NETWORK=auto.\n  verbs: o.*\n  tcp: on, over lo\n  ucx: o" ${with}
  TUTTI_INTERFACE=127.0.0.0/8 $<TARGET_FILE:tutti> info)
tutti_cli_test(info_wrong_interface "address that other hosts are told: none .TUTTI_INTERFACE: host .* has none of 'none0'"
  ${with} TUTTI_INTERFACE=none0 $<TARGET_FILE:tutti> info)
tutti_cli_test(info_without_cross_memory "off .TUTTI_CROSS_MEMORY is off" ${with} TUTTI_CROSS_MEMORY=off $<TARGET_FILE:tutti>
  info)
tutti_cli_test(info_of_a_file "two_small_hosts.json.*1.25 GB/s.*rank 3: host 1" ${with}
  TUTTI_TOPOLOGY=${machines}/two_small_hosts.json $<TARGET_FILE:tutti> info)
tutti_cli_test(topology_of_a_file "\"name\": \"large\"" ${with}
  TUTTI_TOPOLOGY=${machines}/two_socket_64_cores.json $<TARGET_FILE:tutti> topology --json -)
tutti_cli_test(topology_orders "lane 1: .*within a host .rank 0 to rank 1.: 31.5 GB/s.*across hosts" tutti topology
  --machine pcie --hosts 2 --rails 2)
tutti_cli_test(topology_wrong_machine "tutti topology: no machine is called 'cray'; there are nvswitch" tutti topology
  --machine cray)
tutti_cli_test(topology_of_a_bad_file "tutti topology: .*CMakeLists.txt: not JSON from byte 1" tutti topology --topology
  ${CMAKE_SOURCE_DIR}/CMakeLists.txt)
tutti_cli_test(explain "\\* [a-z_]+ +rank order.*one_shot +cannot serve: it needs" tutti explain
  --collective all_reduce --bytes 1M --machine ethernet --hosts 4 --ranks 2)
tutti_cli_test(explain_of_a_file "on 4 ranks of 2 host.s., by the cost model.*\\* " tutti explain --collective
  broadcast --root 3 --bytes 4K --topology ${machines}/two_small_hosts.json)
# As a job would have it: its network's costs, sizes by powers of two, the user's rules; on one host the rules alone.
tutti_cli_test(explain_as_a_job "of 1000 bytes .as 1024, .*between hosts as by tcp: a message takes 3 us at either end" ${with}
  TUTTI_NETWORK=auto $<TARGET_FILE:tutti> explain --collective all_reduce --bytes 1000 --machine ethernet --hosts 4)
tutti_cli_test(explain_nvswitch "on 32 ranks of 4 host.s.*as by verbs: a message takes 0.667 us at either end.*\n  \\* [a-z_]+ +"
  ${with} TUTTI_NETWORK=auto $<TARGET_FILE:tutti> explain --collective all_reduce --bytes 64M --machine nvswitch --hosts 4
  --rails 8)
tutti_cli_test(explain_pcie "on 16 ranks of 2 host.s.*a job takes hierarchical: .*\n  \\* hierarchical .*an order for each rail"
  tutti explain --collective all_reduce --bytes 64M --machine pcie --hosts 2 --rails 2)
tutti_cli_test(explain_uneven "on 6 ranks of 3 host.s.*a job takes [a-z_]+: .*predicted .*\n  \\* [a-z_]+ .*cannot serve: it "
  tutti explain --collective all_gather --bytes 1M --machine uneven --hosts 3)
tutti_cli_test(explain_by_a_rule "a job takes ring: rule 'all_reduce . . ring'; .*predicted .*\n  \\* ring +" ${with}
  "TUTTI_SELECTION=all_reduce * * ring" $<TARGET_FILE:tutti> explain --collective all_reduce --bytes 64 --machine ethernet
  --hosts 4)
tutti_cli_test(explain_on_one_host "a job takes ([a-z_]+): built-in rule '[^\n]*, for registered buffers\n.*\n  \\* "
  tutti explain --collective all_reduce --bytes 64 --machine ethernet --ranks 4)
tutti_cli_test(explain_on_shared_cores "a job takes recursive_doubling: rank order; predicted 1[0-9]\\." ${with} TUTTI_NETWORK=tcp
  $<TARGET_FILE:tutti> explain --collective all_reduce --bytes 8 --topology ${machines}/two_hosts_of_one_machine.json)
tutti_cli_test(explain_without_ranks "tutti explain: the topology does not say where ranks are; expected --ranks N" ${with}
  TUTTI_TOPOLOGY=${machines}/two_core_vm.json $<TARGET_FILE:tutti> explain --collective all_reduce)
set(costs ${CMAKE_BINARY_DIR}/tests/costs.json)
tutti_cli_test(tune "within 30 %: .*written to ${costs}" tutti tune --output ${costs})
tutti_cli_test(tune_compare "all_to_all .*within 30 %: .*by ${costs} of 20" ${with} TUTTI_TUNING=${costs}
  $<TARGET_FILE:tutti> tune --compare)
tutti_cli_test(tune_compare_fresh "all_to_all .*within 30 %: .*by costs that were measured in between" ${with}
  TUTTI_TUNING=off $<TARGET_FILE:tutti> tune --compare --fresh)
tutti_cli_test(explain_measured "on 4 ranks of 1 host.s., .*\ncosts as measured on .* by 2 ranks, 20.* .${costs}.\n" ${with}
  TUTTI_TUNING=${costs} $<TARGET_FILE:tutti> explain --collective all_gather --bytes 64K --ranks 4)
set_tests_properties(cli.tune PROPERTIES FIXTURES_SETUP costs RUN_SERIAL TRUE)
set_tests_properties(cli.tune_compare cli.explain_measured PROPERTIES FIXTURES_REQUIRED costs)
tutti_cli_test(explain_assumed "costs are assumed; 'tutti tune' measures" ${with} TUTTI_TUNING=off $<TARGET_FILE:tutti>
  explain --collective all_gather --ranks 2)
tutti_cli_test(explain_of_a_bad_table "tutti explain: TUTTI_TUNING: .*CMakeLists.txt: not a JSON object" ${with}
  TUTTI_TUNING=${CMAKE_SOURCE_DIR}/CMakeLists.txt $<TARGET_FILE:tutti> explain --collective all_gather --ranks 2)
tutti_cli_test(tune_missing_table "tutti tune: TUTTI_TUNING: '/none.json' is not a file" ${with} TUTTI_TUNING=/none.json
  $<TARGET_FILE:tutti> tune --compare)
set_tests_properties(cli.tune cli.tune_compare cli.tune_compare_fresh PROPERTIES LABELS slow TIMEOUT 300)  # they measure
set_tests_properties(cli.explain_measured PROPERTIES LABELS slow)
find_program(TUTTI_DOT dot)
if(TUTTI_DOT)
  add_test(NAME cli.topology_svg COMMAND tutti topology --machine nvswitch --hosts 8 --rails 8
    --svg ${CMAKE_BINARY_DIR}/tests/topology.svg)
endif()
tutti_cli_test(topology_missing "tutti info: TUTTI_TOPOLOGY: '/none.json' is not a file" ${with}
  TUTTI_TOPOLOGY=/none.json $<TARGET_FILE:tutti> info)
tutti_cli_test(options "\\* TUTTI_SPIN +duration +100us +time +7us" ${with} TUTTI_SPIN=7us $<TARGET_FILE:tutti> options)
tutti_cli_test(options_json "\"name\": \"TUTTI_SECRET\"[^}]*\"value\": \".set, not shown.\"[^}]*\"changed\": true" ${with}
  TUTTI_SECRET=abc $<TARGET_FILE:tutti> options --json)
tutti_cli_test(options_wrong "tutti options: TUTTI_TIMEOUT: 'soon' is not a duration" ${with} TUTTI_TIMEOUT=soon
  $<TARGET_FILE:tutti> options)
tutti_cli_test(selection "barrier +\\* \\* +dissemination\nbroadcast 2 \\* chain" ${with}
  "TUTTI_SELECTION=broadcast 2 * chain" $<TARGET_FILE:tutti> selection)
tutti_cli_test(selection_of_a_call "64 bytes on 2 ranks: chain, rule 'broadcast 2 . chain'" ${with}
  "TUTTI_SELECTION=broadcast 2 * chain" $<TARGET_FILE:tutti> selection --collective broadcast --bytes 64 --ranks 2)
tutti_cli_test(selection_deterministic "ring +cannot serve: it does not add in rank order" tutti selection
  --collective all_reduce --bytes 64M --deterministic)
tutti_cli_test(selection_plain "direct +cannot serve: it needs the callers' buffers" tutti selection
  --collective broadcast --plain)
tutti_cli_test(selection_unknown "no collective is called 'sum'" tutti selection --collective sum)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  add_test(NAME cli.topology_of_a_job COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cli/topology_of_a_job.py
    $<TARGET_FILE:tutti> ${CMAKE_BINARY_DIR}/tests)
  set_tests_properties(cli.topology_of_a_job PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
tutti_cli_test(topology_not_written "tutti topology: cannot write '/none/here.json': No such file or directory" tutti topology
  --machine pcie --json /none/here.json)
