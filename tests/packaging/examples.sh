#!/bin/bash
# packaging.examples: installs a build into a fresh prefix, then builds and runs the examples against it as a user
# would: find_package with the shared and with the static library, and pkg-config.
# examples.sh BUILD_FOLDER SOURCE_FOLDER CMAKE
set -euo pipefail
build=$1 source=$2 cmake=$3
ranks=2

work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-packaging.XXXXXX")
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
"$cmake" --install "$build" --prefix "$prefix" --component library > "$work/install.log" || { cat "$work/install.log"; exit 1; }
libraries=$(dirname "$(find "$prefix" -name libtutti.so)")
export PKG_CONFIG_PATH=$libraries/pkgconfig

for file in libtutti_nccl.so tutti/as_nccl/libnccl.so.2; do
  [ -e "$libraries/$file" ] || { echo "lib/$file was not installed"; exit 1; }
done

# expect NAME PROGRAM: every rank must say that nothing is wrong, and the job must end with 0.
expect() {
  local output
  output=$(timeout 60 "$source/examples/run_ranks.sh" "$ranks" "$2" 2>&1) || { echo "$1: failed: $output"; exit 1; }
  for ((rank = 0; rank < ranks; ++rank)); do
    grep -qx "rank $rank of $ranks: 1000 numbers summed, 0 wrong" <<< "$output" || { echo "$1: rank $rank: $output"; exit 1; }
  done
  echo "$1: right"
}

# with_cmake EXAMPLE NAME [OPTIONS...]: a copy of the example, as a project of its own.
with_cmake() {
  local example=$1 folder=$work/$2
  shift 2
  cp -r "$source/examples/$example" "$folder"
  "$cmake" -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$prefix" "$@" > "$folder.log" 2>&1 &&
    "$cmake" --build "$folder/build" >> "$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
}

with_cmake c_all_reduce c_shared
expect "C, find_package, shared" "$work/c_shared/build/c_all_reduce"

with_cmake cpp_all_reduce cpp_shared -DTUTTI_LIBRARY=shared
expect "C++, find_package, shared" "$work/cpp_shared/build/cpp_all_reduce"

with_cmake cpp_all_reduce cpp_static -DTUTTI_LIBRARY=static
expect "C++, find_package, static" "$work/cpp_static/build/cpp_all_reduce"
if ldd "$work/cpp_static/build/cpp_all_reduce" | grep -q libtutti; then
  echo "C++, static: the program still needs libtutti.so"
  exit 1
fi

# The words of pkg-config's answer are arguments of the compiler.
# shellcheck disable=SC2046
cc -std=c99 -Wall -Wextra -Werror "$source/examples/c_all_reduce/main.c" -o "$work/c_pc" $(pkg-config --cflags --libs tutti)
LD_LIBRARY_PATH=$libraries expect "C, pkg-config, shared" "$work/c_pc"

# shellcheck disable=SC2046
cc -std=c99 "$source/examples/c_all_reduce/main.c" -o "$work/c_pc_static" $(pkg-config --cflags tutti) \
  "$libraries/libtutti.a" $(pkg-config --static --libs tutti | sed 's/-ltutti//')
expect "C, pkg-config, static" "$work/c_pc_static"
