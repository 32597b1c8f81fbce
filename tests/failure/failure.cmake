# The random tests once more with many tries.
function(tutti_failure_slow name tries)
  add_test(NAME failure.${name}_slow COMMAND test_failure --file=${name})
  set_tests_properties(failure.${name}_slow PROPERTIES
    ENVIRONMENT TUTTI_TEST_TRIES=${tries} LABELS slow TIMEOUT 1800 PROCESSORS 2)
endfunction()
tutti_failure_slow(kill 100)
tutti_failure_slow(mismatch 300)
tutti_failure_slow(abort 100)
tutti_failure_slow(shrink 100)
tutti_failure_slow(creation 30)
