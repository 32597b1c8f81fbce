# What ./dev installs: Debian packages by apt, Python packages in .venv. Nothing is asked of the network when everything
# is there already.
needed_packages=(build-essential cmake ninja-build ccache pkg-config git ca-certificates python3 python3-dev python3-venv
  libfmt-dev nlohmann-json3-dev libsodium-dev libcli11-dev)
test_packages=(libgtest-dev libgmock-dev)
optional_packages=(libbenchmark-dev libhwloc-dev openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev graphviz iproute2
  libucx-dev libibverbs-dev ibverbs-providers python3-yaml relacy-dev)
lint_packages=(clang-format clang-tidy)
fuzz_packages=(clang libclang-rt-14-dev)

plot_python=(numpy matplotlib)
training_python=(torch==2.13.0 "${plot_python[@]}" scikit-build-core)
test_python=(pytest)
torch_cpu_index=https://download.pytorch.org/whl/cpu
python=.venv/bin/python
python_is_needed=no  # yes: the command is worth nothing without the Python packages

# Those of the named packages that are not installed.
missing_of() {
  local have
  have=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2> /dev/null | awk '$2 == "installed" {print $1}' || true)
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<< "$have")
}

apt_install() {  # apt_install PACKAGES...
  logged_as_root apt "packages: installing ${#} of Debian's" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "$@"
}

# A machine without apt has its own names for these; go on where the tools themselves are there.
without_apt() {
  local tool absent=()
  for tool in c++ cmake ninja pkg-config git python3; do
    command -v $tool > /dev/null || absent+=("$tool")
  done
  [ ${#absent[@]} = 0 ] || fail "this machine has no apt, and lacks: ${absent[*]}. Install what Debian calls: $*"
  warn "this machine has no apt: if something is not found below, install what Debian calls: $*"
}

# install_packages NEEDED... -- OPTIONAL...: what optional ones bring is off in the build where they cannot be had.
install_packages() {
  local needed=() optional=() missing package
  while [ $# -gt 0 ] && [ "$1" != -- ]; do needed+=("$1") && shift; done
  shift
  optional=("$@")
  if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    without_apt "${needed[@]}"
    return
  fi
  mapfile -t missing < <(missing_of "${needed[@]}" "${optional[@]}")
  if [ ${#missing[@]} = 0 ]; then
    say "packages: all $((${#needed[@]} + ${#optional[@]})) are installed"
    return
  fi
  if [ "$(id -u)" != 0 ] && ! command -v sudo > /dev/null; then
    fail "these packages are missing, and this user cannot install them; as root: apt-get install ${missing[*]}"
  fi
  logged_as_root apt-update "packages: what there is" apt-get update -q ||
    warn "apt-get update failed; trying with the lists that are there"
  apt_install "${missing[@]}" && return
  mapfile -t missing < <(missing_of "${needed[@]}")
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}" || fail "apt could not install what the build needs: ${missing[*]}"
  for package in $(missing_of "${optional[@]}"); do
    apt_install "$package" || warn "$package cannot be had here; its part is off"
  done
}

# Those of the wanted Python packages (name or name==version) that .venv lacks.
python_missing_of() {
  [ -x $python ] || { printf '%s\n' "$@" && return; }
  $python - "$@" << 'END'
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    try:
        have = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        have = None
    if have is None or (version and have.split("+")[0] != version):
        print(wanted)
END
}

# PyPI's torch carries CUDA, some gigabytes; the CPU one is on an index of its own. Prints pip's options.
torch_source() {
  if python3 -c "import urllib.request; urllib.request.urlopen('$torch_cpu_index/torch/', timeout=5)" 2> /dev/null; then
    printf '%s\n' --extra-index-url "$torch_cpu_index"
  fi
}

# install_python PACKAGES...: into .venv. Without network or pip the build goes on without training, unless it is needed.
install_python() {
  local missing source=()
  if [ "${TUTTI_TRAINING:-ON}" = OFF ] && [ "${*/torch*/}" != "$*" ]; then
    say "python: nothing to do (TUTTI_TRAINING=OFF)"
    return
  fi
  mapfile -t missing < <(python_missing_of "$@")
  if [ ${#missing[@]} = 0 ]; then
    say "python: .venv has $*"
    return
  fi
  [[ " ${missing[*]}" != *" torch"* ]] || mapfile -t source < <(torch_source)
  if ! { [ -x $python ] || python3 -m venv .venv; } ||
    ! logged pip "python: installing ${missing[*]} in .venv" $python -m pip install "${source[@]}" "${missing[@]}"; then
    [ $python_is_needed = no ] || fail "pip could not install ${missing[*]} in .venv"
    warn "pip could not install ${missing[*]} in .venv: what needs them is off"
  fi
}
