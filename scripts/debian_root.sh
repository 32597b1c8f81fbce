# Debian in a folder: another release to build and test in, or a machine where nothing was built.
# The folders lie under .platforms/ and need root. Source ui.sh and install.sh before, or run this file itself:
# `scripts/debian_root.sh NAME COMMAND...` is in_debian_root.
#
#   debian_root trixie debian13 g++ cmake             makes .platforms/debian13, once
#   in_debian_root debian13 --no-network make         runs make in it; this tree is /tutti there, and the working directory
debian_roots=$PWD/.platforms

# Debian's mirror of this machine's apt.
debian_mirror() {
  local site
  site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null | head -n 1 || true)
  echo "${site:-http://deb.debian.org/debian}"
}

# debian_root SUITE NAME PACKAGES...: .platforms/NAME with these packages. Nothing is done when it has them already;
# packages that are new in the list are added.
debian_root() {
  local suite=$1 name=$2 root=$debian_roots/$2 log=$debian_roots/$2.log
  shift 2
  [ "$(id -u)" = 0 ] || fail "only root can make a Debian root folder; try: sudo ./dev ..."
  mkdir -p "$debian_roots/cache/partial"
  (
    flock 9  # two at a time would share the package cache
    [ "$(cat "$root/.complete" 2> /dev/null)" != "$suite $*" ] || exit 0
    say "$name: making .platforms/$name, Debian's $suite with $# packages"
    [ -e "$debian_roots/base-$suite/.complete" ] || install_packages debootstrap debian-archive-keyring iproute2 --
    if ! debian_fill "$suite" "$name" "$@" > "$log" 2>&1; then
      tail -n 20 "$log" >&2
      fail "$name: Debian's $suite could not be made; the whole output is in $log"
    fi
  ) 9> "$debian_roots/lock"
}

debian_fill() {
  local suite=$1 name=$2 root=$debian_roots/$2
  shift 2
  debian_base "$suite" || return 1
  if [ ! -e "$root/.complete" ]; then
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$debian_roots/base-$suite" "$root" || return 1
  fi
  rm -f "$root/.complete"
  if [ $# -gt 0 ]; then
    in_debian_root "$name" sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends "$@"' sh "$@" || return 1
  fi
  echo "$suite $*" > "$root/.complete"
}

# The smallest system of the suite, which the others are copies of.
debian_base() {
  local suite=$1 base=$debian_roots/base-$1
  [ ! -e "$base/.complete" ] || return 0
  rm -rf --one-file-system "$base"
  debootstrap --variant=minbase --cache-dir="$debian_roots/cache" "$suite" "$base" "$(debian_mirror)" || return 1
  mkdir "$base/tutti"
  touch "$base/etc/hosts" "$base/etc/resolv.conf"
  echo force-unsafe-io > "$base/etc/dpkg/dpkg.cfg.d/no-fsync"
  echo 'APT::Keep-Downloaded-Packages "true";' > "$base/etc/apt/apt.conf.d/keep-downloaded"
  echo "$suite" > "$base/.complete"
}

# in_debian_root NAME [--no-network] [--bind FROM[:TO]]... COMMAND...: runs COMMAND as root in .platforms/NAME, with this
# tree at /tutti and each folder FROM, read-only, at TO. Its processes and mounts are gone when it ends.
in_debian_root() {
  local name=$1 root=$debian_roots/$1 network=shared namespaces=(--mount --pid --fork --kill-child) folders=()
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      --no-network) network=none && namespaces+=(--net) ;;
      --bind) shift && folders+=("$1") ;;
      *) break ;;
    esac
    shift
  done
  [ -d "$root/tutti" ] || fail "there is no Debian root folder $root"
  unshare "${namespaces[@]}" bash -c "$(declare -f debian_enter); debian_enter \"\$@\"" debian_root \
    "$root" "$PWD" "$debian_roots/cache" "$network" "${#folders[@]}" "${folders[@]}" "$@"
}

# debian_enter ROOT TREE CACHE NETWORK COUNT FOLDERS... COMMAND...: the inside of in_debian_root, in its own namespaces.
debian_enter() {
  set -euo pipefail
  local root=$1 tree=$2 cache=$3 network=$4 count=$5 folder to
  shift 5
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount --bind "$tree" "$root/tutti"
  mount --bind "$cache" "$root/var/cache/apt/archives"
  mount --bind /etc/hosts "$root/etc/hosts"
  if [ "$network" = none ]; then ip link set lo up; else mount --bind /etc/resolv.conf "$root/etc/resolv.conf"; fi
  while [ "$count" -gt 0 ]; do
    folder=${1%%:*} to=${1#*:}
    mkdir -p "$root$to"
    mount -o bind,ro "$folder" "$root$to"
    shift
    count=$((count - 1))
  done
  set +e  # this shell stays: as the first process, it is the one that takes in what the command leaves behind
  chroot "$root" env -i -C /tutti PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    TERM="${TERM:-dumb}" DEBIAN_FRONTEND=noninteractive "$@"
  exit $?
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  source "$(dirname "$0")/ui.sh"
  in_debian_root "$@"
fi
