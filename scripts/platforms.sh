# ./dev platforms [--fast] [NAME...]: builds and tests for other platforms than this machine's, and shows a table at the end.
# Each row of it is a build in .platforms/build/ROW; its output goes to build/log/platforms-ROW-*.log. docs/platforms.md tells
# what each platform is.
platform_names=(debian13 clang arm64 minimal gpu-machine)
platform_more_names=(torch-2.11 torch-2.14)  # 5 GB each: only when they are named
platform_clang_packages=(clang clang-tools)  # the latter for ./dev lint --includes
platform_arm64_packages=(g++-aarch64-linux-gnu qemu-user mmdebstrap debian-archive-keyring)
platform_arm64_libraries=(libfmt-dev nlohmann-json3-dev libsodium-dev libcli11-dev libgtest-dev libgmock-dev libhwloc-dev
  libucx-dev libibverbs-dev libbenchmark-dev)
platform_minimal_packages=(g++ cmake ninja-build ccache pkg-config libfmt-dev nlohmann-json3-dev libsodium-dev
  libgtest-dev libgmock-dev)
# Tests that are for one platform: training needs LibTorch, packaging this machine's own build. The slow ones prove plans,
# those between hosts and of the benchmarks start the same programs as others: none of them knows a compiler.
platform_not_tested='slow|training|packaging|gpu|hosts|perf'
# Under qemu-user: what has no process start another program, and no tool of this machine look at it.
platform_arm64_tests='^(base|plan|planner|reduce|topology|transport|collectives)\.'
# qemu-user knows no congestion control of TCP, and what a program takes is qemu's memory too.
platform_arm64_not_tested='^transport\.tcp_wire$|^collectives\.memory$'
platform_page_tests='^transport\.(arena|conformance|exposed)$|^collectives\.(shm|memory_processes)$'
# What takes minutes: the library, and tests of the parts that know a processor.
platform_fast_targets=(tutti_shared test_base test_reduce test_transport test_collectives)
platform_fast_tests='^(base|reduce)\.|^transport\.(arena|conformance|exposed)$|^collectives\.(c_api|inproc|kinds)$'
platform_fast_page_tests='^transport\.(arena|conformance|exposed)$'
platform_fast=no
platform_rows=()

command_platforms() {
  local name failed=() names=()
  while [ $# -gt 0 ]; do
    case $1 in
      --fast) platform_fast=yes ;;
      *) names+=("$1") ;;
    esac
    shift
  done
  [ ${#names[@]} -gt 0 ] || names=("${platform_names[@]}")
  for name in "${names[@]}"; do
    [[ " ${platform_names[*]} ${platform_more_names[*]} " == *" $name "* ]] ||
      fail "'$name' is not one of the platforms: ${platform_names[*]} ${platform_more_names[*]}"
  done
  steps ${#names[@]}
  needed_packages+=("${test_packages[@]}")
  for name in "${names[@]}"; do
    step "$name"
    "platform_${name//-/_}" || failed+=("$name")
  done
  say
  python3 -B scripts/platforms_table.py "${platform_rows[@]}" || true
  [ ${#failed[@]} = 0 ] || fail "these platforms failed: ${failed[*]}"
}

# ---- The platforms: each sets what it runs in, and returns the status of its builds.

platform_debian13() {
  platform_root || return 1
  platform_build debian13 debian13 -DTUTTI_TRAINING=OFF
}

platform_clang() {
  local bad=0 kernels=
  (install_packages "${needed_packages[@]}" clang --) || return 1
  if [ -e build/kernels.fatbin ]; then kernels=$PWD/build/kernels.fatbin; fi  # nvcc's, whatever compiles the rest
  platform_build clang here -DTUTTI_TRAINING=OFF -DTUTTI_KERNELS="$kernels" -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_COMPILER=clang++ || bad=1
  platform_root || return 1
  platform_build clang-debian13 debian13 -DTUTTI_TRAINING=OFF -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_COMPILER=clang++ || bad=1
  return $bad
}

platform_minimal() {
  debian_root bookworm minimal "${platform_minimal_packages[@]}" || return 1
  platform_build minimal minimal -DTUTTI_TRAINING=OFF -DTUTTI_AVX=OFF -DTUTTI_CUDA=OFF
}

platform_arm64() {
  local row=arm64 folder=.platforms/build/arm64 where=() pages=$platform_page_tests
  local select=(-R "$platform_arm64_tests" -E "$platform_arm64_not_tested")
  if [ $platform_fast = yes ]; then select=() pages=$platform_fast_page_tests; fi
  (install_packages "${needed_packages[@]}" "${platform_arm64_packages[@]}" --) || return 1
  platform_arm64_root || return 1
  local -x TUTTI_TEST_EMULATED=1  # some tests cannot be run so, and say why
  platform_build arm64 here -DTUTTI_TRAINING=OFF -DTUTTI_CUDA=OFF -DTUTTI_EXAMPLES=OFF \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/arm64.cmake" -- "${select[@]}" || return 1
  platform_stage test-64k env QEMU_PAGESIZE=65536 ctest --test-dir $folder --output-on-failure \
    --no-tests=error --output-junit tests-64k.xml -j 2 -R "$pages" && return 0
  sed -i 's/^passed/failed/' $folder/result
  return 1
}

source scripts/rehearsal.sh       # platform_gpu_machine
source scripts/torch_versions.sh  # platform_torch_2.11, platform_torch_2.14

# ---- How they are made

# Debian 13, for its own row, the newest clang, and the check of includes.
platform_root() {
  debian_root trixie debian13 "${needed_packages[@]}" "${optional_packages[@]}" "${platform_clang_packages[@]}"
}

# Arm's libraries, unpacked by apt's own rules: nothing of this machine's packages changes.
platform_arm64_root() {
  local root=$debian_roots/arm64 suite
  [ "$(cat "$root/.complete" 2> /dev/null)" != "${platform_arm64_libraries[*]}" ] || return 0
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
  rm -rf "$root"
  mkdir -p "$debian_roots"
  logged platforms-arm64-libraries "libraries of Debian's $suite for arm64" mmdebstrap --variant=extract \
    --architectures=arm64 --include="${platform_arm64_libraries[*]}" "$suite" "$root" "$(debian_mirror)" || return 1
  echo "${platform_arm64_libraries[*]}" > "$root/.complete"
}

# platform_build ROW WHERE CMAKE-ARGUMENTS... [-- CTEST-ARGUMENTS...]: configures, builds and tests in .platforms/build/ROW.
# WHERE is a Debian root folder, or `here`.
platform_build() {
  local row=$1 folder=.platforms/build/$1 root=$2 configure=() where=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do configure+=("$1") && shift; done
  [ $# = 0 ] || shift
  if [ "$root" != here ]; then
    where=(bash scripts/debian_root.sh "$root" env CCACHE_DIR=/tutti/.platforms/ccache CCACHE_BASEDIR=/tutti CCACHE_NOHASHDIR=yes
      CCACHE_SLOPPINESS="$CCACHE_SLOPPINESS" CCACHE_DEPEND=yes)
  fi
  platform_row "$row" platform_stages "$@"
}

# platform_row ROW COMMAND...: what COMMAND does is a row of the table.
platform_row() {
  local began=$SECONDS state=failed folder=.platforms/build/$1
  mkdir -p "$folder"
  rm -f "$folder"/tests*.xml "$folder/summary.txt"
  platform_rows+=("$1")
  if "${@:2}"; then state=passed; fi
  echo "$state $((SECONDS - began))" > "$folder/result"
  [ $state = passed ]
}

# platform_stages CTEST-ARGUMENTS...: the stages of platform_build, with its variables.
platform_stages() {
  local targets=(all tests)
  if [ $platform_fast = yes ]; then targets=("${platform_fast_targets[@]}") && set -- -R "$platform_fast_tests" "$@"; fi
  platform_stage configure cmake -G Ninja -S . -B "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    "${configure[@]}" || return 1
  cp "build/log/platforms-$row-configure.log" "$folder/summary.txt"
  platform_stage build ninja -C "$folder" -j "$(jobs)" -k 0 "${targets[@]}" || return 1
  platform_stage test ctest --test-dir "$folder" --output-on-failure --no-tests=error --output-junit tests.xml -j 2 \
    -LE "$platform_not_tested" "$@"
}

# platform_stage WHAT COMMAND...
platform_stage() { logged "platforms-$row-$1" "$row, $1" "${where[@]}" "${@:2}"; }
