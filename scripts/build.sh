# Configuring, compiling, and running what was compiled. A preset is one of CMakePresets.json.
folder_of() { if [ "$1" = release ]; then echo build; else echo "build-$1"; fi; }

# One job per core, but no more than memory serves: a file that includes torch takes up to 1.5 GiB.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  echo "${TUTTI_JOBS:-$((memory < 1 ? 1 : memory < cores ? memory : cores))}"
}

# configure PRESET [OPTIONS...]: shows the summary (what is on, what is off and why), and everything when it fails.
configure() {
  local preset=$1 log extra=("${@:2}")
  log=$(folder_of "$preset")/configure.log
  mkdir -p "$(dirname "$log")"
  command -v ccache > /dev/null || extra+=(-DCMAKE_CXX_COMPILER_LAUNCHER=)
  [ "$preset" != release ] || extra+=(-DTUTTI_TRAINING="${TUTTI_TRAINING:-ON}")
  cmake --preset "$preset" "${extra[@]}" > "$log" 2>&1 || { cat "$log" >&2 && fail "cmake could not configure $preset"; }
  sed -n '/^-- tutti /,/^-- Configuring done/{/Configuring done/d;s/^-- //;p}' "$log"
}

# What another folder has compiled, of the same text, is not compiled again: so a clone costs its tests and not its build.
# The last one is what ccache wants for precompiled headers, by its manual.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=yes CCACHE_SLOPPINESS=pch_defines,time_macros
export CCACHE_DEPEND=yes  # by what a compilation has read, not by preprocessing it once more

# compile PRESET WHAT [TARGETS...]: all but the tests, or these targets.
compile() {
  local folder name
  folder=$(folder_of "$1")
  name=$folder${3:+-$3}
  NINJA_STATUS='[%f/%t] ' logged "$name" "$2" ninja -C "$folder" -j "$(jobs)" "${@:3}" ||
    fail "the build failed; its whole output is in build/log/$name.log"
}

# known_rooms PRESET ROOMS...: fails where one of them has no tests.
known_rooms() {
  local known room
  known=$(sed -n 's/^build tests_\([a-z_]*\): phony .*/\1/p' "$(folder_of "$1")/build.ninja" | sort | paste -sd ' ')
  for room in "${@:2}"; do
    [[ " $known " == *" $room "* ]] || fail "--room: '$room' has no tests of its own; expected one of: $known"
  done
}

# run_tests PRESET CTEST-ARGUMENTS...
run_tests() {
  local folder prefix=()
  folder=$(folder_of "$1")
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS=suppressions=$PWD/tests/support/tsan.supp:halt_on_error=1:second_deadlock_stack=1
  # UCX's hook of madvise() runs at a thread's end too, when ThreadSanitizer has freed what it knows of the thread.
  if [ "$1" = tsan ]; then export UCX_MEM_MMAP_HOOK_MODE=none; fi
  # ThreadSanitizer of this age does not know the widest address randomisation of newer kernels.
  if [ "$1" = tsan ] && setarch "$(uname -m)" -R true 2> /dev/null; then prefix=(setarch "$(uname -m)" -R); fi
  shift
  if logged "$folder-ctest" "tests" "${prefix[@]}" ctest --test-dir "$folder" --output-on-failure --no-tests=error -j 2 "$@"; then
    grep -h '^rdma_vm: .* tests ran' "$folder/Testing/Temporary/LastTest.log" || true  # one test for ctest
    say "tests: all passed ($(clock))"
  else
    fail "tests failed; the whole output is in build/log/$folder-ctest.log"
  fi
}

# run_fuzzers SECONDS NAME: seeds come from fuzz/corpus/<target>, what is found stays in build-fuzz.
run_fuzzers() {
  local seconds=$1 only=$2 target name corpus ran=0
  for target in build-fuzz/bin/*"$only"*_fuzz; do
    [ -x "$target" ] || continue
    name=$(basename "$target")
    corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    [ ! -d "fuzz/corpus/$name" ] || cp -n fuzz/corpus/"$name"/* "$corpus"
    say "$name, $seconds s"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="build-fuzz/$name-" "$corpus" || fail "$name found a failure; its input is build-fuzz/$name-*"
    ran=$((ran + 1))
  done
  [ $ran -gt 0 ] || fail "no fuzz target was built in build-fuzz/bin"
  say "fuzz: $ran targets, nothing found"
}
