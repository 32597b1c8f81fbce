# ./dev gpu: what needs a GPU, in stages (scripts/gpu_stages.py). It works without a network, since such machines often have none:
# what they lack lies unpacked in .bundle/ (made by --bundle where there is a network). Nothing is installed.
gpu_packages=(libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libsodium-dev libsodium23
  pkgconf pkgconf-bin libpkgconf3)
gpu_bundle_most_mib=64  # with the tree
gpu_bundle_folder=.bundle

gpu_nccl_for=9.0  # compute capability of the GPU for which NCCL is taken along

# gpu_bundle NCCL_TESTS NCCL: Debian's packages, and what else is named; either may be empty.
gpu_bundle() {
  local nccl_tests=$1 nccl=$2 work package
  command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || fail "--bundle needs apt-get and dpkg-deb"
  [ -z "$nccl_tests" ] || [ -e "$nccl_tests/src/Makefile" ] || [ -f "$nccl_tests" ] ||
    fail "--nccl-tests $nccl_tests: neither a folder with the sources of nccl-tests nor an archive of them"
  [ -z "$nccl" ] || [ -e "$nccl/libnccl.so.2" ] || fail "--nccl $nccl: there is no libnccl.so.2 in it"
  gpu_packages+=("$(apt-cache show libfmt-dev | sed -n 's/^Depends: .*\(libfmt[0-9]*\) .*/\1/p' | head -n 1)")
  work=$(mktemp -d)
  rm -rf "$gpu_bundle_folder" && mkdir -p "$gpu_bundle_folder"
  for package in "${gpu_packages[@]}"; do
    (cd "$work" && apt-get download -q "$package" > /dev/null 2> apt.log) ||
      fail "$package cannot be downloaded: $(tail -n 1 "$work/apt.log")"
  done
  for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$gpu_bundle_folder"; done
  # They were made for /usr.
  find "$gpu_bundle_folder" -name '*.pc' -exec sed -i 's#^prefix=/usr$#prefix=${pcfiledir}/../../..#' {} +
  rm -rf "$work" "$gpu_bundle_folder"/usr/share/{doc,man,lintian}
  if [ -n "$nccl_tests" ]; then gpu_bundle_nccl_tests "$nccl_tests"; fi
  if [ -n "$nccl" ]; then
    mkdir "$gpu_bundle_folder/nccl"
    python3 -B scripts/thin_nccl.py pack "$nccl/libnccl.so.2" "${gpu_nccl_for/./}" \
      "$gpu_bundle_folder/nccl/libnccl.so.2.xz" || exit 1
  fi
  git describe --always --dirty --exclude '*' > "$gpu_bundle_folder/commit" 2> /dev/null || rm "$gpu_bundle_folder/commit"
  gpu_bundle_kernels
  gpu_bundle_size
  say "gpu: $gpu_bundle_folder has ${#gpu_packages[@]} packages${nccl_tests:+, nccl-tests}${nccl:+, NCCL for $gpu_nccl_for}," \
    "$(du -sh "$gpu_bundle_folder" | cut -f1); take it along"
}

# The compiled kernels of build/, or of TUTTI_KERNELS: that saves nvcc's minutes there.
gpu_bundle_kernels() {
  local kernels=${TUTTI_KERNELS-}
  [ "$kernels" != none ] || kernels=
  if [ -z "$kernels" ] && [ -e build/kernels.fatbin ]; then
    kernels=build/kernels.fatbin
    cmake --build build --target $(basename $kernels) > /dev/null || fail "$kernels could not be made: cmake --build build"
  fi
  if [ -z "$kernels" ]; then
    say "gpu: no kernels in $gpu_bundle_folder, since build/kernels.fatbin is not there: nvcc compiles them there, in minutes"
    return
  fi
  cp "$kernels" "$gpu_bundle_folder/kernels.fatbin" && gpu_kernel_sources > "$gpu_bundle_folder/kernels.sources"
}

# What the kernels are compiled of, and more, as a hash.
gpu_kernel_sources() {
  find collectives/executor include base transport/device_window.h cmake/tutti_cuda.cmake -type f -print0 | LC_ALL=C sort -z |
    xargs -0 cat | sha256sum
}

gpu_bundle_size() {
  local tree bundle
  tree=$(git ls-files -z --cached --others --exclude-standard 2> /dev/null | du -cm --files0-from=- 2> /dev/null |
    tail -n 1 | cut -f1) || true  # without git there is no such list
  bundle=$(du -sm "$gpu_bundle_folder" | cut -f1)
  [ $((${tree:-0} + bundle)) -le $gpu_bundle_most_mib ] ||
    fail "$gpu_bundle_folder has $bundle MiB and the tree ${tree:-0}: together they are larger than $gpu_bundle_most_mib MiB"
}

# The sources alone, of a folder or out of an archive with one folder in it.
gpu_bundle_nccl_tests() {
  mkdir -p "$gpu_bundle_folder/nccl-tests"
  if [ -d "$1" ]; then
    tar -C "$1" --exclude=./.git --exclude=./build -cf - . | tar -C "$gpu_bundle_folder/nccl-tests" -xf -
  else
    tar -C "$gpu_bundle_folder/nccl-tests" --strip-components=1 -xf "$1"
  fi
  [ -e "$gpu_bundle_folder/nccl-tests/src/Makefile" ] || fail "--nccl-tests $1: there is no src/Makefile in it"
}

# Uses what .bundle has, if there is one.
gpu_environment() {
  local root=$PWD/.bundle/usr folder
  if [ -d .carry ] && [ ! -e .bundle ]; then  # made before it had its name of now
    warn ".carry is now .bundle, and renamed to that; the old name is read until 0.3"
    mv .carry .bundle
  fi
  [ -d "$root" ] || return 0
  for folder in "$root"/lib/*-linux-gnu; do
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PKG_CONFIG_PATH=$folder/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  done
  command -v pkg-config > /dev/null || export PATH=$PATH:$root/bin
  export CMAKE_PREFIX_PATH=$root${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  [ -e .git ] || [ ! -e .bundle/commit ] || export TUTTI_COMMIT=$(< .bundle/commit)
  if [ -z "${TUTTI_KERNELS-}" ] && [ -e .bundle/kernels.fatbin ]; then
    if [ "$(gpu_kernel_sources)" = "$(cat .bundle/kernels.sources)" ]; then
      export TUTTI_KERNELS=$PWD/.bundle/kernels.fatbin
    else
      warn ".bundle has the kernels of other sources: they are compiled here"
    fi
  fi
}

# Prints the folder of the NCCL that was taken along, unpacked.
gpu_bundled_nccl() {
  local packed=.bundle/nccl/libnccl.so.2.xz folder=build-gpu/nccl
  [ -e $packed ] || return 0
  if ! [ $folder/libnccl.so.2 -nt $packed ]; then
    mkdir -p $folder && python3 -B scripts/thin_nccl.py unpack $packed $folder/libnccl.so.2 || return 1
  fi
  echo "$PWD/$folder"
}

command_gpu() {
  local arguments=() bundle=no nccl_tests=${TUTTI_NCCL_TESTS-} nccl=
  while [ $# -gt 0 ]; do
    case $1 in
      --bundle) bundle=yes ;;
      --carry) warn "--carry is now --bundle; the old name is read until 0.3" && bundle=yes ;;
      --rehearse) command_platforms gpu-machine && return ;;
      --nccl-tests) shift && nccl_tests=${1:?--nccl-tests needs a folder} ;;
      --nccl) shift && nccl=${1:?--nccl needs a folder} ;;
      --nccl-for) shift && gpu_nccl_for=${1:?--nccl-for needs a compute capability} ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  if [ $bundle = yes ]; then
    [ ${#arguments[@]} = 0 ] || fail "gpu --bundle takes --nccl-tests, --nccl and --nccl-for, not ${arguments[*]}"
    gpu_bundle "$nccl_tests" "$nccl"
    return
  fi
  export CUDA_DEVICE_MAX_CONNECTIONS=32  # ranks as threads of one process have a stream each: docs/cuda.md, "Co-residency"
  gpu_environment
  [ -z "$nccl_tests" ] || arguments+=(--nccl-tests "$nccl_tests")
  [ -n "$nccl" ] || nccl=$(gpu_bundled_nccl) || fail "the NCCL in .bundle cannot be unpacked"
  [ -z "$nccl" ] || arguments+=(--nccl "$nccl")
  python3 -B scripts/gpu_stages.py "${arguments[@]}"
}
