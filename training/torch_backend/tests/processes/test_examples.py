"""Every example, as a user runs it: all ranks end well, and what is trained gets better."""
import pathlib
import re

import pytest

from support.launch import TESTS, run, torchrun

EXAMPLES = TESTS.parent / "examples"
DEADLINE = 120
RANKS = {"mesh_2d": [2, 4], "pipeline_1f1b": [2, 4]}
WORDS = {"lora": [["--plain"], []]}
CASES = [(path, ranks, words) for path in sorted(EXAMPLES.glob("*.py")) for ranks in RANKS.get(path.stem, [2])
         for words in WORDS.get(path.stem, [[]])]


@pytest.mark.parametrize("path, ranks, words", CASES,
                         ids=[" ".join([path.stem, str(ranks), *words]) for path, ranks, words in CASES])
def test_example(path: pathlib.Path, ranks: int, words: list[str]) -> None:
    ended = run(torchrun(ranks, str(path), *words), DEADLINE)
    assert ended.status == 0, ended.output
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", ended.output)]
    assert len(losses) >= 3 and losses[-1] < losses[0], ended.output


def test_there_are_examples() -> None:
    assert len({path for path, _, _ in CASES}) >= 7
