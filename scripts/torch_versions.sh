# ./dev platforms torch-2.11 torch-2.14: the PyTorch package and the training layer on other versions of PyTorch than the one that
# ./dev build installs. Each is built and run in .platforms/torch-<version>, with PyPI's PyTorch (5 GB: it carries CUDA, of which
# nothing is used). What a version changes in our code stands in training/torch_backend/csrc/torch_versions.h.
platform_torch_2.11() { torch_version 2.11; }
platform_torch_2.14() { torch_version 2.14; }

torch_version() {
  local version=$1 room=$PWD/.platforms/torch-$1
  mkdir -p "$room"
  torch_version_install "$version" "$room"
  torch_version_package "$version" "$room"
  torch_version_training "$version" "$room"
}

torch_version_install() {
  local version=$1 room=$2
  [ ! -e "$room/venv/.complete" ] || return 0
  say "torch-$version: installing PyTorch $version in .platforms/torch-$version/venv"
  rm -rf "$room/venv" && python3 -m venv "$room/venv"
  "$room/venv/bin/pip" install -q --no-compile "torch==$version.*" numpy pytest || fail "torch-$version: pip could not install torch==$version.*"
  touch "$room/venv/.complete"
}

# The backend's tests in two ranks, on the package in its build folder.
torch_version_package() {
  local version=$1 room=$2 python=$2/venv/bin/python
  say "torch-$version: the PyTorch package"
  torch_version_run "$version" "$room/package.log" cmake -G Ninja -S training/torch_backend -B "$room/package" \
    -DCMAKE_BUILD_TYPE=Release -DTUTTI_CUDA=OFF -DPython_EXECUTABLE="$python"
  torch_version_run "$version" "$room/package.log" cmake --build "$room/package" --parallel "$(jobs)" --target _C
  torch_version_run "$version" "$room/package_tests.log" env PYTHONPATH="$room/package" \
    "$python" -B training/torch_backend/tests/run_in_ranks.py 2
  say "torch-$version: in 2 ranks: $(grep -E '[0-9]+ passed' "$room/package_tests.log" | tail -n 1)"
}

# The training layer, and a training that checks itself.
torch_version_training() {
  local version=$1 room=$2 torch
  say "torch-$version: the training layer"
  torch=$("$room/venv/bin/python" -c 'import torch; print(torch.utils.cmake_prefix_path)')
  torch_version_run "$version" "$room/training.log" cmake -G Ninja -S . -B "$room/training" -DCMAKE_BUILD_TYPE=Release \
    -DTUTTI_CUDA=OFF -DTUTTI_TESTS=OFF -DTUTTI_PERF=OFF -DTUTTI_EXAMPLES=OFF -DTorch_DIR="$torch/Torch"
  torch_version_run "$version" "$room/training.log" cmake --build "$room/training" --parallel "$(jobs)" \
    --target tutti_training train_gpt train_vision
  torch_version_run "$version" "$room/train_gpt.log" "$room/training/bin/train_gpt" --ranks 2 --parallel ddp --deterministic \
    --steps 20 --check
  say "torch-$version: $(grep '^check:' "$room/train_gpt.log" | tail -n 1)"
}

# torch_version_run VERSION LOG COMMAND...: what it says goes to the end of LOG; shown when it fails.
torch_version_run() {
  local version=$1 log=$2
  shift 2
  CMAKE_CXX_COMPILER_LAUNCHER=$(command -v ccache || true) "$@" >> "$log" 2>&1 && return
  tail -n 30 "$log" >&2
  fail "torch-$version: failed: $*; the whole output is in $log"
}
