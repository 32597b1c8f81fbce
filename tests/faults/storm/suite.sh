#!/bin/bash
# suite.sh KIND STORM_LIBRARY PROGRAM FILE...: the tests of each file of a test program while a storm of signals goes on;
# KIND: restart, no_restart. Each file has its own process, as in ctest. Fails when one of them has failed, and says which.
# The launchers of Open MPI and MPICH do not repeat what a signal interrupts: without SA_RESTART they are left out.
set -u
kind=$1 library=$2 program=$3
shift 3
others=()
[ "$kind" = restart ] || others=("--gtest_filter=-*.OpenMpi:*.Mpich")
failed=()
[ $# -gt 0 ] || failed=("no file was given")
for file in "$@"; do
  printf 'storm (%s): %s\n' "$kind" "$file"
  command=("$program" "--file=$file")
  if [ -x "${program}_$file" ]; then command=("${program}_$file"); fi
  env TUTTI_STORM="$kind" LD_PRELOAD="$library" "${command[@]}" --gtest_brief=1 "${others[@]}" || failed+=("$file")
done
if ((${#failed[@]})); then printf 'storm: failed: %s\n' "${failed[*]}" && exit 1; fi
