#!/bin/bash
# Compares verbs with perftest's programs, and an all_reduce over verbs with Open MPI's over TCP, in turns: rdma_vm_bench.sh
# [--short] BUILD [TURNS]. For the guest of ./dev rdma-vm, which is emulated: times are long, and only ratios of figures
# that were taken in one run mean something. The figures come first, then a table of medians with the goals.
#
# Everything goes from a process to another one on the same host by device rxe0 or, what is TCP, by the kernel's own way
# from an address to itself. Left as it is, that has packets of 64 KiB in place of 4, and no checksums, which no cable
# has; so TCP is measured twice, the second time with packets as large as the device's. Each of two processes has one of
# the guest's two cores: left to the system they stay on one for long.
set -euo pipefail
short=no
[ "${1-}" != --short ] || { short=yes && shift; }
build=${1:?rdma_vm_bench.sh [--short] BUILD [TURNS]}
turns=${2:-3}
device=rxe0
interface=dummy0
address=10.9.0.1
export TUTTI_VERBS_DEVICES=$device
export TUTTI_SPIN=5ms  # the usual 100 us are over here before anything can have come
sizes=(65536 262144 1048576)  # of puts
most=1M                       # of all_reduce, from 16 B by a factor of 16
effort=0.1                    # wire_bench's
reduced=(4096 65536 1048576)  # of all_reduce, that are held against what the device moves both ways
iterations=10                 # of all_reduce, at least
trips=1000                    # of ib_write_lat
if [ $short = yes ]; then
  turns=${2:-1} sizes=(65536 1048576) reduced=(1048576) effort=0.02 iterations=3 trips=300
fi

give_up() {
  printf 'rdma_vm_bench: %s\n' "$*" >&2
  exit 1
}

# perftest PROGRAM BYTES COUNT [OPTION]: its line of figures. Its server needs a moment before the client may come.
perftest() {
  local server client=1
  timeout 60 taskset -c 0 "$1" -F -n "$3" -s "$2" ${4-} -d $device > /dev/null 2>&1 &
  server=$!
  for _ in 1 2 3 4 5 6 7 8; do
    sleep 0.3
    if timeout 60 taskset -c 1 "$1" -F -n "$3" -s "$2" ${4-} -d $device $address > /run/perftest 2> /dev/null; then client=0 && break; fi
  done
  wait $server || true
  [ $client = 0 ] || give_up "$1 did not run"
  awk -v bytes="$2" '$1 == bytes' /run/perftest
}

# by_two COMMAND...: as ranks 0 and 1, each with RANK in its environment.
by_two() {
  local rank ranks=()
  for rank in 0 1; do
    RANK=$rank timeout 200 taskset -c $rank "$@" &
    ranks+=($!)
  done
  wait "${ranks[0]}" && wait "${ranks[1]}"
}

# Two ranks that count as two hosts.
all_reduce_tutti() {
  export TUTTI_SIZE=2 TUTTI_LOCAL_SIZE=1 TUTTI_LOCAL_RANK=0 TUTTI_MASTER_ADDR=$address TUTTI_NETWORK=verbs
  # shellcheck disable=SC2016  # each rank's own
  by_two bash -c 'TUTTI_RANK=$RANK TUTTI_HOST_ID=host$RANK exec "$@"' rank "$@" --memory registered
}

all_reduce_openmpi() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TUTTI_LAUNCHED=1
  OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=$interface \
    timeout 200 mpirun.openmpi --bind-to core -n 2 "$@" --backend openmpi --memory plain
}

# all_reduce WHO [NAME]: "all_reduce NAME BYTES MICROSECONDS" of each size.
all_reduce() {
  (all_reduce_"$1" "$build/bin/all_reduce_perf" -b 16 -e $most -f 16 -n $iterations --time 0.2 -w 2 --halves out) \
    > /run/all_reduce 2> /run/all_reduce.errors || give_up "all_reduce over $1: $(tail -n 1 /run/all_reduce.errors)"
  awk -v who="${2:-$1}" '$1 ~ /^[0-9]+$/ {printf "all_reduce %s %s %s\n", who, $1, $6}' /run/all_reduce
}

# packets BYTES: the largest that an address sends to itself, segments that the kernel leaves to the device included.
packets() {
  ip link set dev lo mtu "$1" gso_max_size "$1" || give_up "packets of $1 bytes cannot be had"
}

verbs() {
  # shellcheck disable=SC2016
  by_two bash -c 'exec "$@" --rank $RANK' rank "$build/bin/wire_bench" --wire verbs --effort $effort \
    --sizes "0,$(IFS=, && printf '%s' "${sizes[*]}")" --address $address:5000 |
    awk '$1 == 0 {printf "latency tutti 8 %s\nbest tutti 8 %s\n", $3, $2} $1 ~ /^[1-9]/ {printf "bandwidth tutti %s %s\n", $1, $4 * 1000}'
}

for ((turn = 0; turn < turns; turn++)); do
  perftest ib_write_lat 8 $trips | awk '{printf "latency perftest 8 %s\nbest perftest 8 %s\n", $5, $3}'
  for bytes in "${sizes[@]}"; do
    perftest ib_write_bw "$bytes" $((33554432 / bytes)) |
      awk -v bytes="$bytes" '{printf "bandwidth perftest %s %s\n", bytes, $4 * 1.048576}'
  done
  for bytes in "${reduced[@]}"; do
    perftest ib_write_bw "$bytes" $((8388608 / bytes)) -b |
      awk -v bytes="$bytes" '{printf "bothways perftest %s %s\n", bytes, $4 * 1.048576}'
  done
  verbs
  all_reduce tutti
  all_reduce openmpi
  packets 4096
  all_reduce openmpi openmpi4k
  packets 65536
done | tee /run/figures

# What ends early has said why; figures that are missing are no goal met.
awk -v turns="$turns" -v machine="$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(uname -r)" '
  function median(key,   n, list, i, j, swap) {
    n = split(substr(values[key], 2), list, " ")
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && list[j] + 0 < list[j - 1] + 0; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
    return n == 0 ? 0 : n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
  }
  function size(bytes) { return bytes >= 1048576 ? bytes / 1048576 " MiB" : bytes >= 1024 ? bytes / 1024 " KiB" : bytes " B" }
  function row(what, unit, mine, peer, ratio, goal, met) {
    printf "| %s | %.1f %s | %.1f %s | %.2f | %s | %s |\n", what, mine, unit, peer, unit, ratio, goal, goal == "" ? "" : met ? "yes" : "**no**"
  }
  {
    if (!(($1, $3) in seen)) { seen[$1, $3] = 1; order[$1] = order[$1] " " $3 }
    values[$1, $2, $3] = values[$1, $2, $3] " " $4
  }
  END {
    printf "\n# Verbs on Soft-RoCE, in the guest of ./dev rdma-vm\n\n%s. Medians of %d turns.\n\n", machine, turns
    printf "| what | Tutti | peer | ratio | goal | met |\n|---|---:|---:|---:|---|---|\n"
    mine = median("latency" SUBSEP "tutti" SUBSEP 8); peer = median("latency" SUBSEP "perftest" SUBSEP 8)
    if (peer) row("half a round trip of a signal; ib_write_lat of 8 B", "us", mine, peer, mine / peer, "at most 1.5", mine > 0 && mine <= 1.5 * peer)
    mine = median("best" SUBSEP "tutti" SUBSEP 8); peer = median("best" SUBSEP "perftest" SUBSEP 8)
    if (peer) row("the same, the least of each turn", "us", mine, peer, mine / peer, "", mine > 0 && mine <= 1.5 * peer)
    n = split(order["bandwidth"], list, " ")
    for (i = 1; i <= n; i++) {
      mine = median("bandwidth" SUBSEP "tutti" SUBSEP list[i]); peer = median("bandwidth" SUBSEP "perftest" SUBSEP list[i])
      if (peer) row("puts of " size(list[i]) "; ib_write_bw", "MB/s", mine, peer, mine / peer, "at least 0.85", mine >= 0.85 * peer)
    }
    n = split(order["all_reduce"], list, " ")
    for (i = 1; i <= n; i++) {
      mine = median("all_reduce" SUBSEP "tutti" SUBSEP list[i]); peer = median("all_reduce" SUBSEP "openmpi" SUBSEP list[i])
      fair = median("all_reduce" SUBSEP "openmpi4k" SUBSEP list[i])
      if (mine) row("all_reduce of " size(list[i]) "; Open MPI over TCP, packets of 4 KiB", "us", mine, fair, fair / mine, "at least 1.5", fair >= 1.5 * mine)
      if (mine) row("the same; packets of 64 KiB", "us", mine, peer, peer / mine, "")
      # Each of the two must send as much as the message is, whatever the algorithm.
      limit = median("bothways" SUBSEP "perftest" SUBSEP list[i])
      if (mine && limit) row("the same; ib_write_bw both ways, of as many bytes", "us", mine, 2 * list[i] / limit, 2 * list[i] / limit / mine, "")
    }
  }' /run/figures
