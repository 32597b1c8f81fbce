#!/bin/bash
# Verbs beside perftest's programs on the same device, in turns: rdma_vm_bench.sh BUILD [TURNS [DEVICE ADDRESS]]. For the
# guest of ./dev rdma-vm, which is emulated: times are long, and only ratios that were taken in one run mean something.
#
# Half a round trip of a signal against ib_write_lat of 8 bytes (best and typical of each turn; the best of all turns is
# the least disturbed one), and the bandwidth of puts with their signals against ib_write_bw.
set -euo pipefail
build=$1
turns=${2:-3}
device=${3:-rxe0}
address=${4:-10.9.0.1}
sizes=(65536 262144 1048576)

# perftest PROGRAM BYTES COUNT: its line of figures. Its server needs a moment before the client may come.
perftest() {
  local server client=1
  timeout 60 "$1" -F -n "$3" -s "$2" -d "$device" > /dev/null 2>&1 &
  server=$!
  for _ in 1 2 3 4 5 6 7 8; do
    sleep 0.3
    if timeout 60 "$1" -F -n "$3" -s "$2" -d "$device" "$address" > /run/perftest 2> /dev/null; then client=0 && break; fi
  done
  wait $server || true
  [ $client = 0 ] || { printf 'rdma_vm_bench: %s did not run\n' "$1" >&2 && exit 1; }
  awk -v bytes="$2" '$1 == bytes' /run/perftest
}

for ((turn = 0; turn < turns; turn++)); do
  perftest ib_write_lat 8 1000 | awk '{printf "latency perftest %s %s\n", $3, $5}'
  for bytes in "${sizes[@]}"; do
    perftest ib_write_bw "$bytes" $((1 + 33554432 / bytes / 4)) |
      awk -v bytes="$bytes" '{printf "bandwidth perftest %s %s\n", bytes, $4 * 1.048576}'
  done
  TUTTI_VERBS_DEVICES=$device timeout 200 "$build/bin/wire_bench" --wire verbs --effort 0.1 \
    --sizes "0,$(IFS=, && printf '%s' "${sizes[*]}")" |
    awk '$1 == 0 {printf "latency tutti %s %s\n", $2, $3} $1 ~ /^[1-9]/ {printf "bandwidth tutti %s %s\n", $1, $4 * 1000}'
done | tee /run/figures
awk '
  $1 == "latency" && (!($2 in least) || $3 < least[$2]) {least[$2] = $3}
  $1 == "latency" && (!($2 in usual) || $4 < usual[$2]) {usual[$2] = $4}
  $1 == "bandwidth" && $4 > most[$2, $3] {most[$2, $3] = $4; bytes[$3] = 1}
  END {
    printf "\nbest of all turns        Tutti   perftest   ratio   goal\n"
    printf "half round trip, us  %9.2f  %9.2f  %6.2f   <= 1.5\n", least["tutti"], least["perftest"], least["tutti"] / least["perftest"]
    printf "  the typical one    %9.2f  %9.2f  %6.2f\n", usual["tutti"], usual["perftest"], usual["tutti"] / usual["perftest"]
    for (b in bytes) printf "%9d B, MB/s     %9.2f  %9.2f  %6.2f   >= 0.85\n", b, most["tutti", b], most["perftest", b], most["tutti", b] / most["perftest", b]
  }' /run/figures
