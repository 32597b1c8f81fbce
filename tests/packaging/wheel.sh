#!/bin/bash
# packages.wheel: Debian with Python and without a compiler: pip installs tutti_torch's wheel, and torchrun trains.
# wheel.sh PACKAGES SOURCE FOLDER_OF_TORCH
set -euo pipefail
packages=$1 source=$2 torch=$3

wrong() { echo "packages.wheel: $*" && exit 1; }

work=$(mktemp -d)
cd "$work"

if command -v cc c++ gcc g++ clang; then wrong "there is a compiler here"; fi
python3 -m venv venv
venv/bin/pip --disable-pip-version-check install --no-index --find-links "$torch" "$packages"/tutti_torch-*.whl \
  > log 2>&1 || wrong "$(cat log)"
cp "$source"/training/torch_backend/examples/ddp.py .
output=$(OMP_NUM_THREADS=1 timeout 120 venv/bin/torchrun --nproc-per-node 2 --rdzv-backend c10d \
  --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 ddp.py 2>&1) || wrong "$output"
grep -q loss <<< "$output" || wrong "ddp.py says no loss: $output"
module=$(echo venv/lib/python3*/site-packages/tutti_torch/_C*.so)
needed=$(LD_LIBRARY_PATH=$(echo venv/lib/python3*/site-packages/torch/lib) ldd "$module")
if grep -E "not found|libfmt|libsodium" <<< "$needed"; then wrong "$module needs that"; fi
echo "packages.wheel: right: $(grep loss <<< "$output" | tail -n 1)"
