# ./dev gpu: what needs a GPU: build, tests, compute-sanitizer, benchmarks. It works without a network, since such machines
# often have none: what they lack of Debian's packages lies unpacked in .carry/ (made by --carry where there is a network).
#
# Stages take minutes each, and can be run one by one: a machine may be lent for a while only. Nothing is installed.
gpu_packages=(libfmt-dev libfmt9 nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libsodium-dev libsodium23
  pkgconf pkgconf-bin libpkgconf3)
gpu_carry_most_mib=64
gpu_stages=(build test sanitize bench)
gpu_build=build-gpu
gpu_dry=no
gpu_out=

# Runs a command, or with --dry-run shows it.
gpu_do() {
  if [ $gpu_dry = yes ]; then say "  $(printf '%q ' "$@")"; else "$@"; fi
}

gpu_carry() {
  local work package
  command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || fail "--carry needs apt-get and dpkg-deb"
  work=$(mktemp -d)
  rm -rf .carry && mkdir -p .carry
  for package in "${gpu_packages[@]}"; do
    (cd "$work" && apt-get download -q "$package" > /dev/null 2> apt.log) ||
      fail "$package cannot be downloaded: $(tail -n 1 "$work/apt.log")"
  done
  for package in "$work"/*.deb; do dpkg-deb --extract "$package" .carry; done
  # They were made for /usr.
  find .carry -name '*.pc' -exec sed -i 's#^prefix=/usr$#prefix=${pcfiledir}/../../..#' {} +
  rm -rf "$work" .carry/usr/share/doc .carry/usr/share/man .carry/usr/share/lintian
  [ "$(du -sm .carry | cut -f1)" -le $gpu_carry_most_mib ] || fail ".carry is larger than $gpu_carry_most_mib MiB"
  say "gpu: .carry has ${#gpu_packages[@]} packages, $(du -sh .carry | cut -f1); take it along"
}

# What is found in .carry, when there is one.
gpu_environment() {
  local root=$PWD/.carry/usr folder
  [ -d "$root" ] || return 0
  for folder in "$root"/lib/*-linux-gnu; do
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PKG_CONFIG_PATH=$folder/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  done
  command -v pkg-config > /dev/null || export PATH=$PATH:$root/bin
  export CMAKE_PREFIX_PATH=$root${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
}

gpu_is_there() {
  [ $gpu_dry = yes ] && return
  $gpu_build/bin/tutti info --json > $gpu_build/info.json || fail "gpu: build first (./dev gpu build)"
  python3 - $gpu_build/info.json << 'PY' || fail "gpu: this stage needs a GPU"
import json, sys
gpus = json.load(open(sys.argv[1]))["gpus"]
if not gpus["available"]:
    print(gpus["why_not"], file=sys.stderr)
sys.exit(not gpus["available"])
PY
}

gpu_stage_build() {
  gpu_do cmake -G Ninja -S . -B $gpu_build -DCMAKE_BUILD_TYPE=Release -DTUTTI_CUDA=ON -DTUTTI_TRAINING=OFF \
    -DTUTTI_EXAMPLES=OFF
  NINJA_STATUS='[%f/%t, %e s] ' gpu_do cmake --build $gpu_build --parallel "$(jobs)"
}

gpu_stage_test() {
  gpu_is_there
  gpu_do ctest --test-dir $gpu_build --output-on-failure --no-tests=error --timeout 300 -R '^(gpu|device|cuda_ipc|nccl)\.|^topology.gpus|^perf.device'
  gpu_do python3 -B perf/gpu.py --bin $gpu_build/bin check
}

# The tools watch one process: ranks are threads. A sample, since each access is watched.
gpu_stage_sanitize() {
  local tool program
  gpu_is_there
  command -v compute-sanitizer > /dev/null || [ $gpu_dry = yes ] || fail "gpu: there is no compute-sanitizer"
  for tool in memcheck racecheck initcheck synccheck; do
    for program in all_reduce all_gather reduce_scatter sendrecv; do
      gpu_do compute-sanitizer --tool $tool --error-exitcode 9 $gpu_build/bin/${program}_perf -t 2 --memory device \
        -b 64 -e 64K -f 32 -n 1 -w 0 -c 1 -T 300 || fail "gpu: $tool has found something in ${program}_perf"
    done
  done
}

gpu_stage_bench() {
  gpu_is_there
  if [ -n "$gpu_out" ]; then
    gpu_do python3 -B perf/gpu.py --bin $gpu_build/bin --out "$gpu_out" bench
  else
    gpu_do python3 -B perf/gpu.py --bin $gpu_build/bin bench
  fi
}

command_gpu() {
  local stages=() stage
  while [ $# -gt 0 ]; do
    case $1 in
      --carry) gpu_carry && return ;;
      --dry-run) gpu_dry=yes ;;
      --out) shift && gpu_out=${1:?--out needs a folder} ;;
      build | test | sanitize | bench) stages+=("$1") ;;
      *) fail "gpu: '$1' is none of --carry, --dry-run, --out FOLDER, ${gpu_stages[*]}" ;;
    esac
    shift
  done
  [ ${#stages[@]} -gt 0 ] || stages=("${gpu_stages[@]}")
  export CUDA_DEVICE_MAX_CONNECTIONS=32  # ranks as threads of one process have a stream each: docs/cuda.md, "Co-residency"
  gpu_environment
  steps ${#stages[@]}
  for stage in "${stages[@]}"; do
    step "GPU: $stage"
    "gpu_stage_$stage"
  done
}
