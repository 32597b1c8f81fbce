#!/bin/bash
# packages.archive: the archive, unpacked in a folder that was not known before, on Debian without a compiler and without fmt
# and libsodium. archive.sh PACKAGES
set -euo pipefail
packages=$1

wrong() { echo "packages.archive: $*" && exit 1; }

folder="$(mktemp -d)/moved here"
mkdir "$folder"
tar -xf "$packages"/tutti-*.tar.gz -C "$folder" --strip-components 1
cd /

output=$(timeout 60 "$folder/bin/all_reduce_perf" --ranks 2 -b 8 -e 1M -f 8) || wrong "$output"
grep -q "^# Out of bounds values : 0 OK" <<< "$output" || wrong "all_reduce_perf says $output"
export LD_LIBRARY_PATH=$folder/lib/tutti/as_nccl
output=$(timeout 60 "$folder/bin/all_reduce_perf" --ranks 2 --backend nccl -b 8 -e 1K 2>&1) || wrong "NCCL's interface: $output"
for file in "$folder"/bin/* "$folder"/lib/*.so "$folder"/lib/tutti/*.so; do
  needed=$(ldd "$file")
  if grep -E "not found|libfmt|libsodium" <<< "$needed"; then wrong "$file needs that"; fi
done
echo "packages.archive: right"
