# ./dev package --test: each package where nothing was built, in Debian folders (scripts/debian_root.sh) that are made
# anew each time. What each must show is in tests/packaging/NAME.sh.

package_tests() {
  local tested=0 package_release  # packages are for the system that made them
  package_release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  package_root plain
  package_test plain archive --no-network
  package_test plain programs
  package_root compiler g++ make cmake pkg-config
  package_test compiler library
  if compgen -G "$packages/*.whl" > /dev/null; then
    package_torch
    package_root python python3 python3-venv
    package_test python wheel --no-network --bind "$PWD/build-wheel/torch:/torch"
  fi
  say "packages: $tested tests passed ($(clock))"
}

# package_root NAME PACKAGES...: a new Debian folder, .platforms/package-NAME.
package_root() {
  local name=package-$1
  shift
  rm -rf --one-file-system "$debian_roots/$name"
  debian_root $package_release "$name" "$@"
}

# package_test ROOT NAME OPTIONS...: tests/packaging/NAME.sh in that folder; options are those of in_debian_root.
package_test() {
  local root=package-$1 name=$2 began=$SECONDS
  shift 2
  (
    flock 9  # what it installs goes through the cache of ./dev platforms
    in_debian_root "$root" "$@" --bind "$PWD/$packages:/packages" \
      bash "/tutti/tests/packaging/$name.sh" /packages /tutti /torch
  ) 9> "$debian_roots/lock" || fail "packages.$name failed"
  say "packages.$name: $((SECONDS - began)) s"
  tested=$((tested + 1))
}

# The torch that the wheel asks for, and what torch needs: downloaded here, since it may come from this machine's disk.
package_torch() {
  local source=() needs
  needs=$(unzip -p $packages/*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p')
  mapfile -t source < <(torch_source)
  package_run torch $python -m pip --disable-pip-version-check download --dest build-wheel/torch \
    "${source[@]}" "$needs"
}
