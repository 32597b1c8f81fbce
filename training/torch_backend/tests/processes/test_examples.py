"""Every example: all ranks end well, and what is trained gets better. Those of as many ranks share one job, since most
of a job's time is its start; torch.package (package.sh) starts each one by itself."""
import functools
import pathlib
import re

import pytest

from support.launch import PROGRAMS, TESTS, Ended, run, torchrun

EXAMPLES = TESTS.parent / "examples"
DEADLINE = 120
RANKS = {"mesh_2d": [2, 4], "pipeline_1f1b": [2, 4]}
WORDS = {"lora": [["--plain"], []]}
CASES = [(ranks, ",".join([str(path), *words])) for path in sorted(EXAMPLES.glob("*.py"))
         for ranks in RANKS.get(path.stem, [2]) for words in WORDS.get(path.stem, [[]])]


@functools.cache
def job(ranks: int) -> Ended:
    examples = [example for number, example in CASES if number == ranks]
    return run(torchrun(ranks, str(PROGRAMS / "examples.py"), *examples), DEADLINE)


@pytest.mark.parametrize("ranks, example", CASES, ids=[f"{pathlib.Path(e).name} {ranks}" for ranks, e in CASES])
def test_example(ranks: int, example: str) -> None:
    ended = job(ranks)
    assert ended.status == 0, ended.output
    pieces = re.split(r"^==== (.*)$", ended.output, flags=re.MULTILINE)  # one for each rank and example
    output = "".join(text for name, text in zip(pieces[1::2], pieces[2::2]) if name == example)
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert len(losses) >= 3 and losses[-1] < losses[0], output


def test_there_are_examples() -> None:
    assert len({example.split(",")[0] for _, example in CASES}) >= 7
