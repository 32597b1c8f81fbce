# ./dev platforms torch-2.11 torch-2.14: the PyTorch package and the training layer on other versions of PyTorch than the one that
# ./dev build installs: PyPI's, with CUDA in it, of which nothing is used (5 GB each, in .platforms/torch-<version>).
platform_torch_2.11() { torch_version 2.11; }
platform_torch_2.14() { torch_version 2.14; }

torch_version() {
  local version=$1 python=.platforms/torch-$1/venv/bin/python build=build-torch-$1
  platform_row "torch-$version" torch_version_stages
}

torch_version_stages() {
  (install_packages "${needed_packages[@]}" --) && torch_version_install && torch_version_library && torch_version_package &&
    torch_version_training
}

torch_version_install() {
  local venv=.platforms/torch-$version/venv
  [ ! -e "$venv/.complete" ] || return 0
  rm -rf "$venv" && python3 -m venv "$venv" &&
    torch_version_run install "$python" -m pip install --no-compile "torch==$version.*" numpy pytest && touch "$venv/.complete"
}

# The build folder lies where build/ does, so that the compiler cache knows the library.
torch_version_library() {
  local torch
  torch=$("$python" -c 'import torch; print(torch.utils.cmake_prefix_path + "/Torch")') &&
    torch_version_run configure cmake --preset release -B "$build" -DTUTTI_TESTS=OFF -DTUTTI_EXAMPLES=OFF -DTUTTI_KERNELS=none \
      -DTorch_DIR="$torch" &&
    torch_version_run library cmake --build "$build" --parallel "$(jobs)" --target tutti_static
}

# The package, and the tests of the backend in two ranks.
torch_version_package() {
  local log=build/log/torch-$version-tests.log
  torch_version_run package cmake -G Ninja -S training/torch_backend -B "$build/package" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DPython_EXECUTABLE="$PWD/$python" -DTUTTI_TORCH_LIBRARY="$PWD/$build/libtutti.a" &&
    torch_version_run package cmake --build "$build/package" --parallel "$(jobs)" --target _C &&
    torch_version_run tests env PYTHONPATH="$PWD/$build/package" "$python" -B training/torch_backend/tests/run_in_ranks.py 2 &&
    say "torch-$version: in 2 ranks $(grep -oE '[0-9]+ passed.*' "$log" | tail -n 1)"
}

# The training layer, and a training that checks itself.
torch_version_training() {
  torch_version_run training cmake --build "$build" --parallel "$(jobs)" --target train_gpt train_vision &&
    torch_version_run train_gpt "$build/bin/train_gpt" --ranks 2 --parallel ddp --deterministic --steps 20 --check &&
    say "torch-$version: $(grep '^check:' "build/log/torch-$version-train_gpt.log" | tail -n 1)"
}

# torch_version_run STAGE COMMAND...: what it says is in build/log/torch-VERSION-STAGE.log.
torch_version_run() { logged "torch-$version-$1" "torch-$version, $1" "${@:2}"; }
