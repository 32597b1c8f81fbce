#!/bin/bash
# docs.training_commands: runs every command of docs/training.md as written.
# docs_commands.sh BUILD_FOLDER SOURCE_FOLDER
#
# A command is what begins with build/bin/ and has arguments, in backticks or as an indented line. It runs in the source
# folder, with build/ read as BUILD_FOLDER/, and has to end with status 0 before its deadline.
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$2")
page=docs/training.md
deadline=120  # seconds for each, so that a hang ends; they take a few

cd "$source"
mapfile -t commands < <(grep -oE '(^ {4}|`)build/bin/[a-z_]+ [^`]+' $page | sed -E 's/^( {4}|`)//; s/ +$//')
[ ${#commands[@]} -gt 0 ] || { echo "$page: no command found"; exit 1; }

failed=0
for command in "${commands[@]}"; do
  began=$SECONDS status=0
  output=$(timeout --kill-after=10 $deadline bash -c "${command//build\//$build/}" 2>&1) || status=$?
  echo "$command: status $status, $((SECONDS - began)) s"
  if [ $status -ne 0 ]; then
    echo "$output"
    failed=$((failed + 1))
  fi
done
echo "$page: ${#commands[@]} commands, $failed failed"
[ $failed -eq 0 ]
