# ./dev platforms gpu-machine: ./dev gpu rehearsed on a machine like the one that it is for, without the GPU. That is Debian 13
# in a folder with GCC 13, PyTorch 2.11 for CUDA and this machine's CUDA toolkit; no network, no git, and beside the tree only
# what ./dev gpu --carry brought. First without a driver, up to the first call of it, then on the driver that tests have.
rehearsal_tree=.platforms/gpu-machine-tree
rehearsal_torch=.platforms/gpu-machine-torch
rehearsal_torch_version=2.11.0
rehearsal_packages=(g++-13 cmake ninja-build make python3 python3-dev python3-numpy python3-pytest)

platform_gpu_machine() {
  local cuda
  cuda=$(rehearsal_cuda)
  debian_root trixie gpu-machine "${rehearsal_packages[@]}"
  rehearsal_install_torch
  rehearsal_fill_tree
  rehearsal_fill_root "$cuda"
  say "gpu-machine: without a driver"
  rehearse "$cuda" ./dev gpu --rehearsal --minutes 0 --out build-gpu/no-driver || true  # no stage can run
  rehearsal_expect no-driver 'not run.*it needs a GPU' correct sanitize bench torch device training sanitize-more bench-ranks
  say "gpu-machine: on the driver of the tests"
  rehearse "$cuda" cmake --build build-gpu --target perf_fake_libcuda > "$rehearsal_tree/build-gpu/fake_driver.log" 2>&1 ||
    fail "gpu-machine: the driver of the tests could not be built; the output is in $rehearsal_tree/build-gpu/fake_driver.log"
  mkdir -p "$rehearsal_tree/build-gpu/driver"
  cp "$rehearsal_tree/build-gpu/tests/perf_stand_ins/libcuda.so.1" "$rehearsal_tree/build-gpu/driver"  # without the NCCL beside it
  rehearse "$cuda" env LD_LIBRARY_PATH=/tutti/build-gpu/driver FAKE_GPUS=1 \
    ./dev gpu --rehearsal --minutes 0 --out build-gpu/fake-driver || true  # the next line says which stage has failed
  rehearsal_expect fake-driver passed correct sanitize bench torch device training sanitize-more bench-ranks
}

# The toolkit's folder, as its nvcc tells it: what is on the PATH may be a script elsewhere.
rehearsal_cuda() {
  local top
  command -v nvcc > /dev/null || fail "gpu-machine: there is no nvcc on this machine, whose CUDA toolkit it would use"
  top=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
  [ -e "$top/bin/nvcc" ] || fail "gpu-machine: nvcc does not say where its toolkit is"
  readlink -f "$top"
}

# For Debian 13's Python, with NVIDIA's libraries, which it loads.
rehearsal_install_torch() {
  local platform platforms=()
  [ ! -e "$rehearsal_torch/.complete" ] || return 0
  say "gpu-machine: installing PyTorch $rehearsal_torch_version in $rehearsal_torch, 5 GB"
  for platform in 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${platform}_x86_64"); done
  rm -rf "$rehearsal_torch"
  python3 -m pip install -q --no-compile --target "$rehearsal_torch" --only-binary :all: --implementation cp --python-version 3.13 \
    "${platforms[@]}" --platform manylinux2014_x86_64 --platform any "torch==$rehearsal_torch_version" ||
    fail "gpu-machine: pip could not install PyTorch $rehearsal_torch_version"
  rm -rf "$rehearsal_torch"/numpy*  # Debian's is used
  touch "$rehearsal_torch/.complete"
}

# What would travel. Files keep their times, so that a second rehearsal compiles what has changed.
rehearsal_fill_tree() {
  [ "$(cat .carry/commit 2> /dev/null)" = "$(git describe --always --dirty --exclude '*')" ] || gpu_carry "" ""
  gpu_carry_size
  rm -rf "$rehearsal_tree.new" && mkdir -p "$rehearsal_tree.new"
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read | tar -x -C "$rehearsal_tree.new"
  cp -a .carry "$rehearsal_tree.new/"
  [ ! -d "$rehearsal_tree/build-gpu" ] || mv "$rehearsal_tree/build-gpu" "$rehearsal_tree.new/"
  rm -rf "$rehearsal_tree" "$rehearsal_tree.new"/build-gpu/{no-driver,fake-driver}
  mv "$rehearsal_tree.new" "$rehearsal_tree"
}

# The names of GCC 13, nvcc as the machine has it, and a compute-sanitizer that watches nothing: its command lines are rehearsed.
rehearsal_fill_root() {
  local bin=$debian_roots/gpu-machine/usr/local/bin name
  for name in gcc:gcc-13 cc:gcc-13 g++:g++-13 c++:g++-13; do ln -sf "/usr/bin/${name#*:}" "$bin/${name%:*}"; done
  printf '#!/bin/sh\nexec %s/bin/nvcc "$@"\n' "$1" > "$bin/nvcc"
  printf '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift 2; done\nexec "$@"\n' > "$bin/compute-sanitizer"
  chmod +x "$bin/nvcc" "$bin/compute-sanitizer"
}

# rehearse CUDA COMMAND...: runs COMMAND there.
rehearse() {
  local cuda=$1 torch=$PWD/$rehearsal_torch
  shift
  (cd "$rehearsal_tree" && in_debian_root gpu-machine --no-network --bind "$cuda" --bind "$torch:/opt/torch" \
    nice -n 10 env PYTHONPATH=/opt/torch PYTHONDONTWRITEBYTECODE=1 "$@")
}

# rehearsal_expect RUN OUTCOME STAGES...: of each stage the table says OUTCOME.
rehearsal_expect() {
  local table=$rehearsal_tree/build-gpu/$1/stages.md outcome=$2 stage
  shift 2
  cat "$table"
  for stage in "$@"; do
    grep -q "^| $stage | $outcome" "$table" || fail "gpu-machine: stage $stage is not as expected ($outcome): $table"
  done
}
