# Format, static analysis, and the checks of the tree.
cpp_patterns=('*.h' '*.hpp' '*.c' '*.cc')

# C++ sources that differ from the main branch (or from the last commit but one), committed or not.
changed_sources() {
  local base=HEAD~1
  if git rev-parse -q --verify origin/main > /dev/null && [ "$(git rev-parse origin/main)" != "$(git rev-parse HEAD)" ]; then
    base=$(git merge-base origin/main HEAD)
  fi
  git rev-parse -q --verify "$base" > /dev/null || base=$(git hash-object -t tree /dev/null)
  git diff --name-only --diff-filter=d "$base" -- '*.cc'
}

# clang-tidy needs to know how a file is compiled: files without an entry (examples, fuzzers) are left to their builds.
compiled_of() {
  local file
  for file in "$@"; do
    if grep -q "\"file\": \"$PWD/$file\"" build/tidy/compile_commands.json; then echo "$file"; fi
  done
}

# How each file by itself would be compiled: in build/ several are compiled at once. Nothing is built in this folder, so that
# no precompiled header of GCC lies there, which clang would take and cannot read.
tidy_database() {
  mkdir -p build/tidy
  cmake --preset release -B build/tidy -DTUTTI_UNITY=OFF -DTUTTI_KERNELS=none > build/tidy/configure.log 2>&1 ||
    { cat build/tidy/configure.log >&2 && fail "cmake could not configure build/tidy"; }
}

# Names each file that clang-format would change.
unformatted() {
  local file found=0
  while read -r file; do
    clang-format --dry-run --Werror "$file" 2> /dev/null || { say "$file: not formatted; clang-format -i $file" && found=1; }
  done < <(git ls-files "${cpp_patterns[@]}")
  return $found
}

# Whether each file includes what it uses, by the clang of Debian 13 (docs/platforms.md). Takes minutes, as a build does.
lint_includes() {
  local build=.platforms/build/includes
  step "Debian 13"
  platform_root
  step "Includes"
  in_debian_root debian13 cmake -G Ninja -S . -B $build -DTUTTI_TRAINING=OFF -DTUTTI_CUDA=OFF -DTUTTI_UNITY=OFF \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ > build/includes.log 2>&1 ||
    fail "cmake failed; its output is in build/includes.log"
  in_debian_root debian13 python3 -B scripts/include_check.py --build $build --tool clang-include-cleaner-19 "$@" ||
    fail "files include too little or too much; ./dev lint --includes --mend adds and removes it"
}

lint() {
  local files bad=0
  step "Format"
  unformatted || bad=1

  step "clang-tidy"
  tidy_database
  if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(changed_sources); fi
  mapfile -t files < <(compiled_of "${files[@]}")
  say "${#files[@]} files"
  if [ ${#files[@]} -gt 0 ]; then
    printf '%s\0' "${files[@]}" |
      xargs -0 -n 1 -P "$(jobs)" clang-tidy -p build/tidy --quiet --warnings-as-errors='*' 2> build/clang-tidy.log || bad=1
  fi

  step "The tree"
  for check in includes files words std_headers; do
    python3 -B tests/house/$check.py . || bad=1
  done
  [ $bad = 0 ] || fail "lint found something"
  say "lint: nothing found"
}
