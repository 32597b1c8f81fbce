# NCCL's headers, which the tests of its interface are compiled with: .nccl/VERSION/include. One Python environment holds
# one version of a package, so the headers are taken out of the packages, of some hundred megabytes each.
nccl_versions=(2.28.9 2.32.3)
nccl_with_library=2.28.9  # a test starts this version's library

# Nothing is asked of the network when the headers are there. What cannot be had is off in the build.
install_nccl_headers() {
  local version
  for version in "${nccl_versions[@]}"; do
    [ -e .nccl/$version/include/nccl.h ] || fetch_nccl $version ||
      warn "NCCL $version's header could not be fetched: the tests with it are off"
  done
}

# fetch_nccl VERSION: downloads the package, and keeps of it what is needed.
fetch_nccl() {
  local version=$1 work status=0
  say "nccl: fetching the header of NCCL $version"
  [ -x $python ] || python3 -m venv .venv || return
  mkdir -p .nccl
  work=$(mktemp -d .nccl/fetch.XXXXXX)
  $python -m pip download --quiet --retries 1 --no-deps --only-binary :all: --dest "$work" nvidia-nccl-cu13==$version &&
    unpack_nccl $version "$work" && rm -rf .nccl/$version && mv "$work/nvidia/nccl" .nccl/$version || status=1
  rm -rf "$work"
  return $status
}

unpack_nccl() {  # unpack_nccl VERSION FOLDER: of the one wheel in FOLDER
  $python - "$2" "$([ $1 != $nccl_with_library ] || echo nvidia/nccl/lib/libnccl.so.2)" << 'END'
import pathlib, sys, zipfile
folder, library = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    wheel.extractall(folder, [name for name in wheel.namelist()
                              if name.startswith("nvidia/nccl/include/") or name == library])
END
}
