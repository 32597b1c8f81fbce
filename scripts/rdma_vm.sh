# ./dev rdma-vm: a small virtual machine that has RDMA devices, on a machine that has none.
#
# QEMU emulates the machine (neither KVM nor rights are needed), the kernel is Debian's, the devices are Soft-RoCE: RDMA in
# software, under the same libibverbs that drives NICs. The guest's root is this machine's root, read-only, under an
# overlay in memory: all programs and libraries are there, and nothing that is done in the guest stays.
#
#   rxe0, rxe1   on dummy interfaces, 10.9.0.1 and 10.9.1.1, with frames of 9000 bytes as RoCE networks have them. What
#                goes from a device to itself never leaves it
#   rxe2, rxe3   on the two ends of a cable (veth), 10.9.2.1 and 10.9.2.2: packets really travel, and can be lost
#                (tc qdisc add dev cable0 root netem loss 1%)
#
# Exits with the command's status, or with 77 where the guest cannot be had (ctest: skipped), saying why. Without a
# command it runs the suites of tests/rdma_vm/suites.sh and the short form of perf/rdma_vm_bench.sh.
rdma_vm_packages=(qemu-system-x86 busybox-static cpio kmod rdma-core ibverbs-providers libibverbs-dev perftest iproute2)
rdma_vm_cannot=77
rdma_vm_memory_mib=3072
rdma_vm_limit_s=900
rdma_vm_cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tutti/rdma_vm
rdma_vm_work=
rdma_vm_qemu=

# What the devices need. crc32_generic: rdma_rxe asks for it by the algorithm's name, so its dependencies do not list it.
rdma_vm_modules=(crc32_generic crc32_pclmul virtio_pci 9pnet_virtio 9p overlay rdma_rxe ib_uverbs rdma_ucm veth sch_netem
  dummy)

rdma_vm_not_here() {
  say "rdma-vm: not run: $*"
  exit $rdma_vm_cannot
}

rdma_vm_clean() {
  [ -z "$rdma_vm_qemu" ] || kill "$rdma_vm_qemu" 2> /dev/null || true
  [ -z "$rdma_vm_work" ] || rm -rf "$rdma_vm_work"
}

rdma_vm_look_around() {
  local tool
  [ "$(uname -m)" = x86_64 ] || rdma_vm_not_here "the guest is an x86_64 machine, this one is $(uname -m)"
  for tool in qemu-system-x86_64 busybox cpio modprobe depmod gzip dpkg-deb; do
    command -v $tool > /dev/null || rdma_vm_not_here "this machine has no $tool (Debian: apt-get install ${rdma_vm_packages[*]})"
  done
}

# The kernel and its modules, unpacked from Debian's package into the cache; prints its version. Nothing is installed.
rdma_vm_kernel() {
  local package fresh version
  version=$(cat "$rdma_vm_cache/version" 2> /dev/null || true)
  if [ -z "$version" ]; then
    command -v apt-get > /dev/null || rdma_vm_not_here "there is no kernel in $rdma_vm_cache, and no apt-get to fetch one"
    package=$(apt-cache depends linux-image-amd64 2> /dev/null | awk '/Depends:/ {print $2; exit}')
    [ -n "$package" ] || rdma_vm_not_here "apt knows no linux-image-amd64 (apt-get update?)"
    say "rdma-vm: fetching $package, once, into $rdma_vm_cache" >&2
    mkdir -p "$rdma_vm_cache"
    fresh=$(mktemp -d "$rdma_vm_cache/fresh.XXXXXX")
    (cd "$fresh" && apt-get download -q "$package" > apt.log 2>&1 && dpkg-deb --extract "$package"_*.deb . && rm "$package"_*.deb) || {
      say "rdma-vm: $(tail -n 1 "$fresh/apt.log")" >&2
      rm -rf "$fresh"
      rdma_vm_not_here "the package $package cannot be downloaded" >&2
    }
    version=$(ls "$fresh/lib/modules")
    depmod --basedir "$fresh" "$version"
    # Two runs at a time may both have come here; the second finds the folder taken, and it is the same.
    mv -T "$fresh" "$rdma_vm_cache/$version" 2> /dev/null || rm -rf "$fresh"
    printf '%s\n' "$version" > "$rdma_vm_cache/version"
  fi
  printf '%s\n' "$version"
}

# The first RAM disk: loads the modules, mounts the root, and starts the guest's script in it.
rdma_vm_disk() {
  local version=$1 disk=$rdma_vm_work/disk module file
  mkdir -p "$disk"/{bin,proc,sys,dev,lower,upper,root,modules}
  cp "$(command -v busybox)" "$disk/bin/busybox"
  for module in "${rdma_vm_modules[@]}"; do
    modprobe --dirname "$rdma_vm_cache/$version" --set-version "$version" --show-depends "$module" 2> /dev/null |
      awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$disk/modules/"
    basename "$file"
  done > "$disk/order"
  cat > "$disk/init" << 'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read module; do $b insmod /modules/$module 2> /dev/null; done < /order  # a CPU may lack what one of them speeds up
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose machine /lower
$b mount -t tmpfs tmpfs /upper
$b mkdir -p /upper/changes /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work overlay /root
for folder in proc sys dev; do $b mount --move /$folder /root/$folder; done
$b mkdir -p /root/dev/shm /root/dev/pts /root/tmp /root/run
for folder in dev/shm run; do $b mount -t tmpfs tmpfs /root/$folder; done
$b mount -t devpts devpts /root/dev/pts
$b cp /guest.sh /root/run/guest.sh
exec $b chroot /root /bin/bash /run/guest.sh
END
  chmod +x "$disk/init"
  rdma_vm_script "${@:2}" > "$disk/guest.sh"
  (cd "$disk" && find . | cpio --create --format=newc --quiet | gzip -1) > "$rdma_vm_work/disk.gz"
}

# What the guest does: the first serial port is the kernel's, the second has the command's output, the third its status.
rdma_vm_script() {
  cat << END
export HOME=/root PATH=$(printf '%q' "$PATH")
$(export -p | grep -E '^declare -x (TUTTI|GTEST|UCX|OMPI|ASAN|UBSAN)_' || true)
cd $(printf '%q' "$PWD")
END
  cat << 'END'
exec < /dev/null
stty -F /dev/ttyS1 raw
stty -F /dev/ttyS2 raw
{
  ulimit -l unlimited
  hostname soft-roce
  echo 127.0.0.1 localhost soft-roce > /etc/hosts
  ip link set lo up
  ip link add cable0 type veth peer name cable1
  for i in 0 1; do
    ip link add dummy$i mtu 9000 type dummy
    ip addr add 10.9.$i.1/24 dev dummy$i
    ip addr add 10.9.2.$((i + 1))/24 dev cable$i
    ip link set dummy$i up
    ip link set cable$i up
    # Both ends of the cable are ours: packets from an own address are to be taken, and to be answered by their end.
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
      echo ${setting#*=} > /proc/sys/net/ipv4/conf/cable$i/${setting%=*}
    done
  done
  echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
  for i in 0 1; do
    rdma link add rxe$i type rxe netdev dummy$i
    rdma link add rxe$((i + 2)) type rxe netdev cable$i
  done
} > /dev/ttyS0 2>&1
END
  printf '(%s) > /dev/ttyS1 2>&1\n' "$(printf '%q ' "$@")"
  cat << 'END'
echo $? > /dev/ttyS2
stty -F /dev/ttyS2 sane  # waits until it is out
/bin/busybox poweroff -f
END
}

rdma_vm_arguments() {
  rdma_vm_built=
  while [ $# -gt 0 ]; do
    case $1 in
      --built | --memory | --limit)
        [ $# -gt 1 ] || fail "rdma-vm: $1 wants a value"
        case $1 in
          --built) rdma_vm_built=$2 ;;
          --memory) rdma_vm_memory_mib=$2 ;;
          --limit) rdma_vm_limit_s=$2 ;;
        esac
        shift 2
        ;;
      --) shift && break ;;
      -*) fail "rdma-vm: '$1' is not one of --built FOLDER, --memory MIB, --limit SECONDS" ;;
      *) break ;;
    esac
  done
  rdma_vm_command=("$@")
}

# Boots the guest and runs a command in it.
rdma_vm_run() {
  local version status
  rdma_vm_look_around
  version=$(rdma_vm_kernel) || {
    [ -z "$version" ] || say "$version"
    exit $rdma_vm_cannot
  }
  rdma_vm_work=$(mktemp -d)
  trap rdma_vm_clean EXIT
  rdma_vm_disk "$version" "$@"
  timeout "$rdma_vm_limit_s" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "$rdma_vm_memory_mib" \
    -nodefaults -display none -no-reboot -net none \
    -kernel "$rdma_vm_cache/$version/boot/vmlinuz-$version" -initrd "$rdma_vm_work/disk.gz" \
    -append "console=ttyS0 quiet panic=-1" -serial "file:$rdma_vm_work/console" \
    -chardev stdio,id=output,signal=off -serial chardev:output -serial "file:$rdma_vm_work/status" \
    -fsdev local,id=machine,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=machine,mount_tag=machine 2> "$rdma_vm_work/qemu" < /dev/null &
  rdma_vm_qemu=$!
  wait "$rdma_vm_qemu" || true
  rdma_vm_qemu=
  status=$(tr -dc '0-9' < "$rdma_vm_work/status" 2> /dev/null || true)
  if [ -z "$status" ]; then
    tail -n 5 "$rdma_vm_work/qemu" >&2
    tail -n 15 "$rdma_vm_work/console" >&2 2> /dev/null || true
    fail "rdma-vm: the guest did not finish in $rdma_vm_limit_s s; above is how its console ends"
  fi
  return "$status"
}
