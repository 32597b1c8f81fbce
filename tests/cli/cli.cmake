# The `tutti` program as a user calls it.
add_test(NAME cli.verify COMMAND tutti verify --max-ranks 12)
set_tests_properties(cli.verify PROPERTIES PASS_REGULAR_EXPRESSION " 0 wrong," TIMEOUT 120)
add_test(NAME cli.plan COMMAND tutti plan --collective all_reduce --algorithm ring --ranks 4 --bytes 1M
  --svg ${CMAKE_BINARY_DIR}/tests/ring.svg)
set_tests_properties(cli.plan PROPERTIES PASS_REGULAR_EXPRESSION "puts 1572864 bytes in 6 messages")  # 2 * 3/4 MiB
add_test(NAME cli.unknown_algorithm COMMAND tutti plan --collective all_reduce --algorithm unknown)
set_tests_properties(cli.unknown_algorithm PROPERTIES PASS_REGULAR_EXPRESSION "no algorithm has these names")
add_test(NAME cli.root_out_of_bounds COMMAND tutti plan --collective broadcast --algorithm chain --ranks 4 --root 4)
set_tests_properties(cli.root_out_of_bounds PROPERTIES WILL_FAIL TRUE)
