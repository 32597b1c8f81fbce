#!/usr/bin/env python3
"""Runs the tests of in_ranks/ in N ranks at once: torch is imported and the groups are made once for all of them.

  python run_in_ranks.py 3                                  # all of in_ranks/, 3 ranks
  python run_in_ranks.py 2 in_ranks/test_fsdp.py -k hsdp    # what follows goes to pytest

Every rank runs the same tests in the same order; conftest.py lets the ranks agree on each outcome, and rank 0 reports.
Exit status: pytest's; 124 when the deadline passed.

Environment:
  TUTTI_TORCH_TEST_BACKEND   the backend under test [tutti]; "gloo" tries the tests themselves
  TUTTI_TORCH_TEST_DEVICE    where test_collectives.py and the collectives of test_programs.py have their tensors [cpu]
  TUTTI_TORCH_TEST_SEED      of the random programs [a new one in each run; it is printed]
  TUTTI_TORCH_TEST_DEADLINE  seconds for the whole run [900]
"""
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from support.launch import end_session, rank_environment, torchrun  # noqa: E402


def main() -> int:
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    words = [word for word in sys.argv[2:]]
    if not any(not word.startswith("-") and pathlib.Path(word.split("::")[0]).exists() for word in words):
        words.insert(0, str(HERE / "in_ranks"))
    deadline = float(os.environ.get("TUTTI_TORCH_TEST_DEADLINE", "900"))
    command = torchrun(int(sys.argv[1]), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "-q", *words)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the ranks are ended, too
    process = subprocess.Popen(command, env=rank_environment(), start_new_session=True)
    try:
        return process.wait(timeout=deadline)
    except subprocess.TimeoutExpired:
        print(f"run_in_ranks: not done after {deadline:.0f} s", file=sys.stderr)
        return 124
    finally:
        end_session(process)


if __name__ == "__main__":
    sys.exit(main())
