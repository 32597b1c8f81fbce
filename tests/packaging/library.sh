#!/bin/bash
# packages.library: Debian with a compiler and libtutti-dev: the examples are built as a user builds them, and run.
# library.sh PACKAGES SOURCE
set -euo pipefail
packages=$1 source=$2

wrong() { echo "packages.library: $*" && exit 1; }

work=$(mktemp -d)
cp -r "$source/examples" "$work"
cd "$work"

apt-get update -q > /dev/null
apt-get install -y -q --no-install-recommends "$packages"/libtutti*_*.deb > log 2>&1 || wrong "$(cat log)"

# expect NAME PROGRAM: both ranks must say that nothing is wrong.
expect() {
  local output rank
  output=$(timeout 60 examples/run_ranks.sh 2 "$2" 2>&1) || wrong "$1: $output"
  for rank in 0 1; do
    grep -qx "rank $rank of 2: 1000 numbers summed, 0 wrong" <<< "$output" || wrong "$1: $output"
  done
}

# with_cmake EXAMPLE NAME OPTIONS...
with_cmake() {
  local example=$1 name=$2
  shift 2
  { cmake -S "examples/$example" -B "$name" "$@" && cmake --build "$name"; } > log 2>&1 || wrong "$(cat log)"
  expect "$example, $name" "$name/$example"
}
with_cmake c_all_reduce c_shared
with_cmake cpp_all_reduce cpp_shared -DTUTTI_LIBRARY=shared
with_cmake cpp_all_reduce cpp_static -DTUTTI_LIBRARY=static
# The words of pkg-config's answer are arguments of the compiler.
# shellcheck disable=SC2046
cc -std=c99 examples/c_all_reduce/main.c -o by_pkg_config $(pkg-config --cflags --libs tutti)
expect "pkg-config" ./by_pkg_config
soname=$(objdump -p by_pkg_config | awk '/NEEDED.*tutti/ {print $2}')
[ "$soname" = libtutti.so.0 ] || wrong "a program needs '$soname'; expected libtutti.so.0"
echo "packages.library: right"
