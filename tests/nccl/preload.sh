#!/bin/bash
# nccl.preload.*: a program that is linked to another libnccl.so.2 fails with that one and works with ours preloaded; so
# does one that is linked to every function.
# preload.sh PROGRAM EVERY_FUNCTION LIBRARY
set -euo pipefail
program=$1 every_function=$2 library=$3
if output=$("$program" processes 2 2>&1); then
  echo "the program works without LD_PRELOAD: $output"
  exit 1
fi
grep -q "this is the dummy" <<< "$output" || { echo "expected the dummy's error without LD_PRELOAD, not: $output"; exit 1; }
for how in init_all threads processes; do
  LD_PRELOAD=$library "$program" $how 2
done
if output=$(LD_BIND_NOW=1 "$every_function" "$library"); then
  echo "the functions are the library's without LD_PRELOAD: $output"
  exit 1
fi
LD_BIND_NOW=1 LD_PRELOAD=$library "$every_function" "$library"
