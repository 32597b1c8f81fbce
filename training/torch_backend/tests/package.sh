#!/bin/bash
# torch.package: what a user gets from `pip install ./training/torch_backend`, in a fresh virtual environment and run
# from a folder that has nothing to do with the repository. package.sh PYTHON PACKAGE_FOLDER BUILD_FOLDER
set -euo pipefail
python=$1 package=$2 build=$3
unset PYTHONPATH

work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-torch.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
fresh=$work/venv/bin/python
# torch is what PYTHON has: it is large, and there may be no network. So are the tools of the build.
"$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)' > \
  "$("$fresh" -c 'import site; print(site.getsitepackages()[0])')/torch_of_the_build.pth"

# All of it is compiled, unless ccache has it: from the run before, or from the build in BUILD_FOLDER's neighbour, whose
# sources have the same names seen from there. What ccache wants for precompiled headers is in its manual.
if command -v ccache > /dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  CCACHE_BASEDIR=$(cd "$package/../.." && pwd)
  export CCACHE_BASEDIR CCACHE_NOHASHDIR=yes CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=yes
fi
rm -rf "$build"
"$fresh" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-index --no-build-isolation \
  --wheel-dir "$work" --config-settings build-dir="$build" "$package"
"$fresh" -m pip --disable-pip-version-check install --quiet --no-deps --no-index "$work"/tutti_torch-*.whl
unpacked=$("$fresh" -c 'import pathlib, tutti_torch; print(pathlib.Path(tutti_torch.__file__).parent)')
[[ $unpacked == "$work"/venv/* ]] || { echo "the package is not of the fresh environment: $unpacked"; exit 1; }
for file in py.typed _C.pyi; do
  [ -f "$unpacked/$file" ] || { echo "the wheel lacks $file"; exit 1; }
done
if find "$unpacked" -name '*.cc' -o -name '*.h' | grep -q .; then echo "the wheel has sources"; exit 1; fi

cp -r "$package/examples" "$work/examples"
cd "$work/examples"
for example in *.py; do
  ranks=2
  [ "$example" != mesh_2d.py ] || ranks=4
  output=$(OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo timeout 120 "$work/venv/bin/python" -m torch.distributed.run \
    --nproc-per-node $ranks --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 "$example" 2>&1) ||
    { echo "$example: $output"; exit 1; }
  grep -q "loss" <<< "$output" || { echo "$example said nothing: $output"; exit 1; }
  echo "$example: $(grep loss <<< "$output" | tail -n 1)"
done
"$fresh" -m pip --disable-pip-version-check uninstall --quiet --yes tutti-torch
if "$fresh" -c 'import tutti_torch' 2> /dev/null; then echo "something is left after pip uninstall"; exit 1; fi
