#!/bin/bash
# packaging.completion: what bash completes for the programs of tutti-tools.
# completion.sh FOLDER             FOLDER has the completions of all
# completion.sh PROGRAMS SOURCE    they are made of these programs first
set -euo pipefail
folder=$1
if [ $# = 2 ]; then
  folder=$(mktemp -d "${TMPDIR:-/tmp}/tutti-completion.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  for program in tutti all_reduce_perf reduce_perf alltoall_perf; do
    python3 -B "$2/scripts/completion.py" "$1/$program" "$folder/$program"
  done
fi

# completes EXPECTED PROGRAM WORDS...: the last word is the one that is being typed.
completes() {
  local expected=$1 function got
  shift
  source "$folder/$1"
  function=$(complete -p "$1" | sed 's/.* -F \(\S*\) .*/\1/')
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  "$function"
  got="${COMPREPLY[*]}"
  [ "$got" = "$expected" ] || { echo "$*: bash would offer '$got'; expected '$expected'"; exit 1; }
}

completes "--deterministic" all_reduce_perf --det
completes "--minbytes" all_reduce_perf -b 8 --minb
completes "sum" reduce_perf -o su
completes "tutti openmpi mpich gloo nccl" alltoall_perf --backend ""
completes "" all_reduce_perf -b ""
completes "verify" tutti ver
completes "--max-ranks" tutti verify --max
completes "--version" tutti --vers
cd "$folder"
completes "alltoall_perf" all_reduce_perf --output_file allt
echo "packaging.completion: right"
