# ./dev platforms gpu-machine: ./dev gpu rehearsed on a machine like the one that it is for, without the GPU. That is Debian 13
# in a folder with GCC 13 that links libstdc++ statically, as one such machine's did, PyTorch 2.11 for CUDA and this machine's
# CUDA toolkit; no network, no git, and besides the tree only .bundle/. First without a driver, up to the
# first call of it, then on the driver that tests have.
rehearsal_tree=.platforms/gpu-machine-tree
rehearsal_torch=.platforms/gpu-machine-torch
rehearsal_bundle=.platforms/gpu-machine-bundle  # not the one that ./dev gpu --bundle has made for a real machine
rehearsal_torch_version=2.11.0
rehearsal_packages=(g++-13 cmake ninja-build make python3 python3-dev python3-numpy python3-pytest)
# All but torch-nccl, for which PyTorch itself must find a GPU, and nccl-tests, whose sources are not here.
rehearsal_stages=(correct sanitize bench torch device training sanitize-more bench-ranks)

platform_gpu_machine() { platform_row gpu-machine rehearsal; }

rehearsal() (
  install_packages "${needed_packages[@]}" --
  rehearsal_cuda=$(rehearsal_find_cuda) || exit 1
  debian_root trixie gpu-machine "${rehearsal_packages[@]}" || exit 1
  rehearsal_install_torch || exit 1
  rehearsal_fill_root || fail "gpu-machine: the commands of the machine could not be written"
  rehearsal_fill_tree || fail "gpu-machine: the tree could not be copied to $rehearsal_tree"
  say "gpu-machine: without a driver"
  rehearse ./dev gpu --rehearsal --minutes 0 --out build-gpu/no-driver  # fails, since no stage can run
  rehearsal_expect no-driver 'not run .*it needs a GPU' "${rehearsal_stages[@]}"
  say "gpu-machine: on the driver of the tests"
  rehearsal_driver || fail "gpu-machine: the driver of the tests could not be built; $rehearsal_tree/build-gpu/driver.log says why"
  rehearse env LD_LIBRARY_PATH=/tutti/build-gpu/driver FAKE_GPUS=1 ./dev gpu --rehearsal --minutes 0 --out build-gpu/fake-driver
  rehearsal_expect fake-driver passed "${rehearsal_stages[@]}"
)

# The toolkit's folder, as its nvcc tells it: what is on the PATH may be a script elsewhere.
rehearsal_find_cuda() {
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
  for platform in manylinux_2_{5..36}_x86_64 manylinux2014_x86_64 any; do platforms+=(--platform "$platform"); done
  rm -rf "$rehearsal_torch"
  python3 -m venv .platforms/pip || fail "gpu-machine: python3 has no venv"
  logged gpu-machine-torch "gpu-machine: PyTorch $rehearsal_torch_version in $rehearsal_torch, 5 GB" \
    .platforms/pip/bin/python -m pip install --no-compile --target "$rehearsal_torch" --only-binary :all: --implementation cp \
    --python-version 3.13 "${platforms[@]}" "torch==$rehearsal_torch_version" ||
    fail "gpu-machine: pip could not install PyTorch $rehearsal_torch_version"
  touch "$rehearsal_torch/.complete"
}

# The names of GCC 13, nvcc as this machine has it, and a compute-sanitizer that watches nothing: its command lines are rehearsed.
rehearsal_fill_root() {
  local bin=$debian_roots/gpu-machine/usr/local/bin name
  for name in gcc:gcc-13 cc:gcc-13 g++:g++-13 c++:g++-13; do ln -sf "/usr/bin/${name#*:}" "$bin/${name%:*}" || return 1; done
  printf '#!/bin/sh\nexec %s/bin/nvcc "$@"\n' "$rehearsal_cuda" > "$bin/nvcc" &&
    printf '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift 2; done\nexec "$@"\n' > "$bin/compute-sanitizer" &&
    chmod +x "$bin/nvcc" "$bin/compute-sanitizer"
}

# What would travel. Files keep their times, so a second rehearsal compiles what has changed.
rehearsal_fill_tree() {
  local new=$rehearsal_tree.new
  gpu_bundle_folder=$rehearsal_bundle
  [ "$(cat $rehearsal_bundle/commit 2> /dev/null)" = "$(git describe --always --dirty --exclude '*')" ] || gpu_bundle "" ""
  gpu_bundle_size
  rm -rf "$new" && mkdir -p "$new" || return 1
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$new" || return 1
  cp -a $rehearsal_bundle "$new/.bundle" || return 1
  [ ! -d "$rehearsal_tree/build-gpu" ] || mv "$rehearsal_tree/build-gpu" "$new/" || return 1
  rm -rf "$rehearsal_tree" "$new"/build-gpu/{no-driver,fake-driver} && mv "$new" "$rehearsal_tree"
}

# A libcuda.so.1 that threads play, in a folder without the libnccl.so.2 that tests have beside it.
rehearsal_driver() {
  local folder=$rehearsal_tree/build-gpu
  rehearse cmake --build build-gpu --target perf_fake_libcuda > "$folder/driver.log" 2>&1 &&
    mkdir -p "$folder/driver" && cp "$folder/tests/perf_fakes/libcuda.so.1" "$folder/driver"
}

# rehearse COMMAND...: runs COMMAND there.
rehearse() {
  local torch=$PWD/$rehearsal_torch
  (cd "$rehearsal_tree" && in_debian_root gpu-machine --no-network --bind "$rehearsal_cuda" --bind "$torch:/opt/torch" \
    env PYTHONPATH=/opt/torch PYTHONDONTWRITEBYTECODE=1 TUTTI_JOBS="$(jobs)" LDFLAGS=-static-libstdc++ "$@")
}

# rehearsal_expect RUN PATTERN STAGES...: what the table says of each stage.
rehearsal_expect() {
  local table=$rehearsal_tree/build-gpu/$1/stages.md pattern=$2 stage
  shift 2
  cat "$table" || exit 1
  for stage in "$@"; do
    grep -q "^| $stage | $pattern" "$table" || fail "gpu-machine: stage $stage is not as expected ($pattern): $table"
  done
}
