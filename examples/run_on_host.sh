#!/bin/sh
# run_on_host.sh HOST HOSTS RANKS FIRST PROGRAM [ARGUMENTS...]: starts this host's RANKS processes of a job on HOSTS hosts
# with RANKS ranks each, and waits for them. To be started on every host, which is HOST number 0, 1, ...; FIRST is the
# name or address of host 0. TUTTI_SECRET must be set, the same on all hosts. mpirun, torchrun and srun do all this
# themselves; this shows what a launcher of your own has to.
# Ends with the exit code of the lowest rank that failed, or 0.
set -eu
host=$1 hosts=$2 ranks=$3
export TUTTI_MASTER_ADDR="$4" TUTTI_MASTER_PORT="${TUTTI_MASTER_PORT:-29400}"
export TUTTI_SIZE=$((hosts * ranks)) TUTTI_LOCAL_SIZE="$ranks"
: "${TUTTI_SECRET:?must be set, to the same random word on all hosts}"
shift 4

pids=
local=0
while [ "$local" -lt "$ranks" ]; do
  TUTTI_RANK=$((host * ranks + local)) TUTTI_LOCAL_RANK=$local "$@" &
  pids="$pids $!"
  local=$((local + 1))
done

result=0
for pid in $pids; do
  code=0
  wait "$pid" || code=$?
  if [ "$result" -eq 0 ]; then result=$code; fi
done
exit "$result"
