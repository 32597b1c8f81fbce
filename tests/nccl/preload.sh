#!/bin/bash
# nccl.preload: a program that is linked to another libnccl.so.2 fails with that one and works with ours preloaded.
# preload.sh PROGRAM LIBRARY
set -euo pipefail
program=$1 library=$2
if output=$("$program" processes 2 2>&1); then
  echo "the program works without LD_PRELOAD: $output"
  exit 1
fi
grep -q "this is the dummy" <<< "$output" || { echo "expected the dummy's error without LD_PRELOAD, not: $output"; exit 1; }
for how in init_all threads processes; do
  LD_PRELOAD=$library "$program" $how 2
done
