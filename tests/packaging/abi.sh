#!/bin/bash
# packaging.abi: the functions and types of the C API beside those of the last release, which tests/packaging/abi describes.
# What docs/abi.md does not allow fails. abi.sh SOURCE_FOLDER COMPILER
# A release describes itself: abi.sh SOURCE_FOLDER COMPILER --write
set -euo pipefail
compiler=$2
cd "$1"
described=$PWD/tests/packaging/abi

work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-abi.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Only debugging information tells types, and the library has none: the C API is compiled once more, alone.
major=$(sed -n 's/^project(tutti VERSION \([0-9]*\)\..*/\1/p' CMakeLists.txt)
echo '{ global: tutti_*; local: *; };' > "$work/map"
"$compiler" -std=c++20 -g -O0 -fPIC -fvisibility=hidden -DTUTTI_BUILDING -I. -Iinclude -shared \
  -Wl,-soname,"libtutti.so.$major" -Wl,--version-script="$work/map" collectives/api/c_api.cc -o "$work/libtutti.so"
abidw --headers-dir include/tutti --drop-private-types --exported-interfaces-only --no-corpus-path \
  --no-comp-dir-path --no-show-locs --no-elf-needed --no-parameter-names --no-architecture --type-id-style hash \
  --out-file "$work/now.abi" "$work/libtutti.so"
if [ "${3-}" = --write ]; then
  rm -f "$described"/libtutti.so.*
  cp "$work/now.abi" "$described/libtutti.so.$major"
  exit
fi

last=$described/libtutti.so.$major
[ -e "$last" ] || { echo "there is no $last: is the soname new? Then describe the new ABI: $0 $* --write"; exit 1; }
if ! abidiff --suppressions "$described/allowed.ini" --no-added-syms --no-show-locs --no-architecture \
  "$last" "$work/now.abi"; then
  echo "The C ABI is not that of the last release any more, which docs/abi.md promises under this soname."
  exit 1
fi
