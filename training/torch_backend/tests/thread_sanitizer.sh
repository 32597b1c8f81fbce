#!/bin/bash
# The extension, Tutti in it, under ThreadSanitizer: builds it so into build-torch-tsan, and runs tests of in_ranks/ with
# the sanitizer's run time preloaded, since Python and torch are built without it.
#   thread_sanitizer.sh PYTHON [RANKS] [what goes to pytest...]     e.g.  .venv/bin/python 2 -k "threads or under_way"
# Fails where there is a report; tsan.supp lists what is left out, and why. Takes some minutes; gcc.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$(realpath -s "$1") ranks=${2:-2}
shift $(($# > 1 ? 2 : 1))
build=$here/../../../build-torch-tsan

[ -f "$build/build.ninja" ] || cmake -S "$here/.." -B "$build" -G Ninja -DPython_EXECUTABLE="$python" \
  -DTUTTI_SANITIZE=thread -DCMAKE_CXX_FLAGS="-fsanitize=thread -fno-omit-frame-pointer -g1"
ninja -C "$build" _C
# Its shadow memory wants addresses that a randomised layout may have given away.
export TSAN_OPTIONS="suppressions=$here/tsan.supp exitcode=66 ${TSAN_OPTIONS-}"
PYTHONPATH=$build LD_PRELOAD=$(gcc -print-file-name=libtsan.so) setarch -R \
  "$python" "$here/run_in_ranks.py" "$ranks" "$@"
