#!/bin/sh
# run_ranks.sh RANKS PROGRAM [ARGUMENTS...]: starts RANKS processes of a program on this machine and waits for them.
# mpirun, torchrun and srun do the same; this is for a machine that has none of them.
# Ends with the exit code of the lowest rank that failed, or 0.
set -eu
ranks=$1
shift
secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))

pids=
rank=0
while [ "$rank" -lt "$ranks" ]; do
  TUTTI_RANK=$rank TUTTI_SIZE=$ranks TUTTI_SECRET=$secret TUTTI_MASTER_ADDR=127.0.0.1 TUTTI_MASTER_PORT=$port "$@" &
  pids="$pids $!"
  rank=$((rank + 1))
done

result=0
for pid in $pids; do
  code=0
  wait "$pid" || code=$?
  if [ "$result" -eq 0 ]; then result=$code; fi
done
exit "$result"
