#!/bin/bash
# packages.programs: Debian without a compiler, tutti-tools and tutti-nccl from their packages. programs.sh PACKAGES SOURCE
set -euo pipefail
packages=$1 source=$2

wrong() { echo "packages.programs: $*" && exit 1; }

cd /

# must WHAT COMMAND...: the command must succeed; its output tells why it did not.
must() {
  local what=$1 output
  shift
  output=$("$@" 2>&1) || wrong "$what: $output"
}

if command -v cc c++ gcc g++ clang; then wrong "there is a compiler here"; fi
apt-get update -q > /dev/null
must "install" apt-get install -y -q --no-install-recommends "$packages"/tutti-tools_*.deb "$packages"/tutti-nccl_*.deb

output=$(timeout 60 all_reduce_perf --ranks 2 -b 8 -e 1M -f 8) || wrong "all_reduce_perf: $output"
grep -q "^# Out of bounds values : 0 OK" <<< "$output" || wrong "all_reduce_perf says $output"
must "tutti verify" timeout 60 tutti verify --max-ranks 4
[[ $(tutti --version) =~ ^[0-9.]+$ ]] || wrong "tutti --version says $(tutti --version)"
must "NCCL's interface" env LD_LIBRARY_PATH="$(dirname "$(find /usr/lib -name libnccl.so.2)")" timeout 60 \
  all_reduce_perf --ranks 2 --backend nccl -b 8 -e 1K -f 8
if ldconfig -p | grep -q libnccl; then wrong "the system takes libtutti_nccl.so for NCCL"; fi
for program in /usr/bin/*_perf /usr/bin/tutti; do
  name=$(basename "$program")
  if ldd "$program" | grep "not found"; then wrong "$name lacks libraries"; fi
  zcat "/usr/share/man/man1/$name.1.gz" | grep -q -- '\\-\\-help' || wrong "$name has no man page"
done
must "completion" bash "$source/tests/packaging/completion.sh" /usr/share/bash-completion/completions
must "removal" apt-get purge -y -q tutti-tools tutti-nccl
if find /usr -name '*tutti*' | grep .; then wrong "purging left these behind"; fi
echo "packages.programs: right"
