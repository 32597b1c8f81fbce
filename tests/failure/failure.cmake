# The random tests once more with many tries.
function(tutti_failure_slow name tries)
  add_test(NAME failure.${name}_slow COMMAND test_failure --file=${name})
  set_tests_properties(failure.${name}_slow PROPERTIES
    ENVIRONMENT TUTTI_TEST_TRIES=${tries} LABELS slow TIMEOUT 1800)
endfunction()
tutti_failure_slow(kill 40)
set_tests_properties(failure.kill_slow PROPERTIES PROCESSORS 2)
tutti_failure_slow(mismatch 200)
tutti_failure_slow(abort 100)
tutti_failure_slow(shrink 100)
tutti_failure_slow(creation 30)
