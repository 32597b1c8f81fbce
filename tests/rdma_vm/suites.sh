#!/bin/bash
# What ./dev rdma-vm runs inside the guest when it is given no command: suites.sh [--benchmark] BUILD. Each suite is a line
# of the summary; the last line says how many tests ran. Fails when one failed, or when none ran. With --benchmark a short
# form of perf/rdma_vm_bench.sh comes behind: one turn, which shows that it runs and what the figures are like.
set -uo pipefail
benchmark=no
[ "${1-}" != --benchmark ] || { benchmark=yes && shift; }
build=$1
tests=$build/tests
ran=0
failed=0
stalled=0
summary=()

# suite NAME COMMAND...: a GoogleTest program. What it says is shown when it fails.
suite() {
  local name=$1 log=/run/suite.log begin=$SECONDS status=0 count skipped
  shift
  command -v "$1" > /dev/null || { summary+=("$name: not built") && return; }
  "$@" > $log 2>&1 || status=$?
  count=$(grep -c '^\[       OK \]' $log || true)
  skipped=$(grep -c '^\[  SKIPPED \] .* (' $log || true)
  ran=$((ran + count))
  if [ $status = 0 ] && [ $((count + skipped)) = 0 ]; then
    printf 'no test has a name of that kind\n' >> $log && status=1
  fi
  if [ $status != 0 ]; then
    failed=$((failed + 1))
    tail -n 60 $log
    summary+=("$name: FAILED with status $status, $count tests passed ($((SECONDS - begin)) s)")
  else
    summary+=("$name: $count tests passed, $skipped skipped ($((SECONDS - begin)) s)")
  fi
  printf '%s\n' "${summary[-1]}"
}

# campaign NAME COUNT ARGUMENTS...: scenarios of tests/chaos. The machine is emulated: its deadline is long.
campaign() {
  local name=$1 count=$2 log=/run/chaos.log begin=$SECONDS
  shift 2
  if "$build"/bin/chaos --network verbs --no-training --deadline 20 --seed 1 --count "$count" --log $log "$@" > /dev/null; then
    ran=$((ran + count)) && summary+=("$name: $count scenarios, no finding ($((SECONDS - begin)) s)")
  else
    grep -A4 FINDING $log
    failed=$((failed + 1)) && summary+=("$name: FAILED ($((SECONDS - begin)) s)")
  fi
  printf '%s\n' "${summary[-1]}"
}

# sent_by DEVICE: packets so far.
sent_by() { cat /sys/class/infiniband/"$1"/ports/1/hw_counters/sent_pkts; }

# may_stall COMMAND...: once more, if a rank waited in vain. Under loss a connection of Soft-RoCE (Linux 6.1) has been
# seen to move nothing for a minute, neither data nor an error, while others went on: once in some sixty runs. Then what
# the devices count is shown. Wrong data fails at once.
exec 3>&1
may_stall() {
  local log=/run/may_stall.log status=0 device
  "$@" > $log 2>&1 || status=$?
  if [ $status != 0 ] && grep -qE 'waits in vain|waited [0-9.]+ s in' $log && ! grep -qE 'first_wrong|is wrong' $log; then
    for device in rxe2 rxe3; do grep -H . /sys/class/infiniband/$device/ports/1/hw_counters/* | grep -v ':0$' >&3; done
    printf 'a connection stalled; the tests run once more\n' >&3
    stalled=$((stalled + 1))
    "$@"
  else
    cat $log
    return $status
  fi
}

suite "verbs, devices to themselves" $tests/test_transport_verbs_wire \
  --gtest_filter='Devices/*Processes:Devices/*AnyThreadMayCall*:Devices/*PeersAndLanes*'
# storm KIND COMMAND...: while each thread gets a signal every 3 ms, which interrupts what it waits in or does not.
storm() { env TUTTI_STORM=$1 TUTTI_STORM_US=3000 LD_PRELOAD=$tests/libstorm.so "${@:2}"; }
for kind in restart no_restart; do
  [ -e $tests/libstorm.so ] || continue
  suite "verbs, in a storm of signals ($kind)" storm $kind $tests/test_transport_verbs_wire \
    --gtest_filter='Devices/*PutsOfAnySize*Processes:Devices/*PeersAndLanes*Processes:Devices/*ADeadPeer*Processes'
  TUTTI_NETWORK=verbs suite "collectives, in a storm of signals ($kind)" storm $kind $tests/test_collectives \
    --file=remote_processes --gtest_filter='*RandomPrograms/ab'
done
suite "verbs, memory that the host cannot touch" $tests/test_transport_verbs_wire --gtest_filter='VerbsDevice*'
export TUTTI_TEST_CABLE=rxe2,rxe3
suite "verbs, over a cable" $tests/test_transport_verbs_wire \
  --gtest_filter='Cable/*PutsOfAnySize*Processes:Cable/*PeersAndLanes*Processes:Cable/*ADeadPeer*Processes'
for end in cable0 cable1; do tc qdisc add dev $end root netem loss 1% || failed=$((failed + 1)); done
suite "verbs, over a cable that loses one packet in a hundred" may_stall $tests/test_transport_verbs_wire \
  --gtest_filter='Cable/*PutsOfAnySize*Processes:Cable/*WhatIsHeldBack*Processes:Cable/*WhoSeesASignal*Processes'
TUTTI_NETWORK=verbs suite "collectives over that cable, by two rails" may_stall $tests/test_collectives --file=remote_processes \
  --gtest_filter='*RandomPrograms/ab'
campaign "random faults, over that cable" 4 --lossy
for end in cable0 cable1; do
  dropped=$(tc -s qdisc show dev $end | sed -n 's/.*dropped \([0-9]*\).*/\1/p')
  printf '%s lost %s packets\n' $end "$dropped"
  [ "${dropped:-0}" -gt 0 ] || { printf 'nothing was lost on %s: the test shows nothing\n' $end && failed=$((failed + 1)); }
  tc qdisc replace dev $end root netem delay 20ms || failed=$((failed + 1))
done
suite "verbs, over a slow cable" $tests/test_transport_verbs_wire \
  --gtest_filter='VerbsDevice.ABlockThatIsLetGo*:VerbsDevice.WhatFindsNoRoom*'
for end in cable0 cable1; do tc qdisc del dev $end root; done
suite "verbs, over a cable that is cut" $tests/test_transport_verbs_wire --gtest_filter='VerbsDevice.ACableThatIsCut*'
TUTTI_NETWORK=verbs suite "collectives, by a port that goes down" $tests/test_collectives --file=remote_failures \
  --gtest_filter='RemoteFailures.APortThatGoesDown*'
unset TUTTI_TEST_CABLE
TUTTI_NETWORK=verbs suite "collectives, ranks that count as two hosts" $tests/test_collectives --file=remote_processes \
  --gtest_filter='*/ab'
campaign "random faults, by verbs" 15 --no-links
before=($(for i in 0 1 2 3; do sent_by rxe$i; done))
TUTTI_VERBS_DEVICES=rxe0,rxe1,rxe2,rxe3 TUTTI_NETWORK=verbs \
  suite "collectives, two ranks of each host share four rails" $tests/test_collectives --file=remote_processes \
  --gtest_filter='*RandomPrograms/aabb'
for i in 0 1 2 3; do
  packets=$(($(sent_by rxe$i) - before[i]))
  printf 'rxe%s sent %s packets\n' $i $packets
  [ $packets -gt 100 ] || { printf 'nothing went by rxe%s: the test shows nothing\n' $i && failed=$((failed + 1)); }
done
# UCX connects by TCP: by UD, which it has for that, it lost its way on Soft-RoCE's loopback.
before=$(sent_by rxe0)
ran_before=$ran
UCX_TLS=rc_verbs,tcp TUTTI_TEST_UCX_DEVICE=rxe0:1,dummy0 suite "UCX over rc_verbs" $tests/test_transport_ucx_wire \
  --gtest_filter='UcxOverRdma/*PutsOfAnySize*Processes:UcxOverRdma/*PeersAndLanes*Processes'
UCX_TLS=rc_verbs,tcp TUTTI_TEST_UCX_DEVICE=rxe2:1,cable0 suite "UCX over rc_verbs, frames of 1500 bytes" \
  $tests/test_transport_ucx_wire --gtest_filter='UcxOverRdma/*WholeNote*Processes'
UCX_TLS=rc_verbs,tcp UCX_NET_DEVICES=rxe0:1,dummy0 TUTTI_NETWORK=ucx suite "collectives over UCX's rc_verbs" \
  $tests/test_collectives --file=remote_processes --gtest_filter='*RandomPrograms/ab'
packets=$(($(sent_by rxe0) - before))
printf 'rxe0 sent %s packets for UCX\n' $packets
[ $packets -gt 10000 ] || [ $ran = $ran_before ] || { printf 'UCX went by another way: the test shows nothing\n' && failed=$((failed + 1)); }
mount -t cgroup2 cgroup2 /sys/fs/cgroup || failed=$((failed + 1))
suite "limits of cgroups, version 2" $tests/test_faults --file=limits --gtest_filter='*Cgroup'
TUTTI_NETWORK=verbs TUTTI_TEST_CARD=verbs suite "GPUDirect, with GPUs of the tests" $tests/test_device --file=direct_processes \
  --gtest_filter='*HasTheBits*:*AmongCalls*/0'

if [ $benchmark = yes ]; then
  perf/rdma_vm_bench.sh --short "$build" || { printf 'the benchmark did not end well\n' && failed=$((failed + 1)); }
fi

printf '\nrdma_vm: %s tests ran, %s suites failed, %s connections of Soft-RoCE stalled under loss\n' $ran $failed $stalled
[ $failed = 0 ] && [ $ran -gt 0 ]
