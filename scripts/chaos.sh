# ./dev chaos: random programs with random faults, and whether each ends as promised (tests/chaos/).

# command_chaos [MINUTES] [ARGUMENTS...]: what follows goes to the program.
command_chaos() {
  local minutes=5
  if [ "${1-}" = --help ]; then usage && exit; fi
  if [[ ${1-} =~ ^[0-9.]+$ ]]; then minutes=$1 && shift; fi
  steps 3
  needed_packages+=("${test_packages[@]}")
  configure_release "${training_python[@]}"
  compile release "the campaign" chaos
  step "Random programs with random faults, for $minutes minutes"
  mkdir -p build/log
  build/bin/chaos --minutes "$minutes" --log build/log/chaos.log "$@" ||
    fail "there are findings; each stands in build/log/chaos.log, and 'build/bin/chaos --seed N --count 1' repeats one"
  say "chaos: no finding; all scenarios stand in build/log/chaos.log"
}
