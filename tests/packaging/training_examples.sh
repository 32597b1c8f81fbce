#!/bin/bash
# packaging.training_examples: installs a build into a fresh prefix, then builds and runs the training examples against it
# and LibTorch, as a user would.
# training_examples.sh BUILD_FOLDER SOURCE_FOLDER CMAKE TORCH_PREFIX
set -euo pipefail
build=$1 source=$2 cmake=$3 torch=$4
ranks=2

work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-packaging.XXXXXX")
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
for component in library training; do
  "$cmake" --install "$build" --prefix "$prefix" --component $component >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
cp -r "$source/examples" "$work/examples"
{ "$cmake" -S "$work/examples/libtorch" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix;$torch" -DCMAKE_BUILD_TYPE=Release &&
  "$cmake" --build "$work/build" --parallel 2; } >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

for example in ddp_in_30_lines fsdp pipeline; do
  output=$(timeout 60 "$source/examples/run_ranks.sh" $ranks "$work/build/$example" 2>&1) || { echo "$example: $output"; exit 1; }
  for ((rank = 0; rank < ranks; ++rank)); do
    grep -q "^rank $rank of $ranks: trained" <<< "$output" || { echo "$example: rank $rank: $output"; exit 1; }
  done
  echo "$example: $output"
done
