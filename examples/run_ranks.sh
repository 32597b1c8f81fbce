#!/bin/sh
# run_ranks.sh RANKS PROGRAM [ARGUMENTS...]: starts RANKS processes of a program on this machine and waits for them.
# mpirun, torchrun and srun do the same; this is for a machine that has none of them.
# Ends with the exit code of the lowest rank that failed, or 0.
set -eu
ranks=$1
shift
# Without an address they meet inside the machine, where no other user gets in, by the name of their job.
job=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
unset TUTTI_MASTER_ADDR TUTTI_MASTER_PORT

pids=
rank=0
while [ "$rank" -lt "$ranks" ]; do
  TUTTI_RANK=$rank TUTTI_SIZE=$ranks TUTTI_JOB=$job "$@" &
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
