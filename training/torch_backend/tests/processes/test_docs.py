"""docs/pytorch.md says what is: its tables against what the tests check, its programs by running them."""
import pathlib
import re

import pytest
import torch

from support import calls
from support.launch import BACKEND, TESTS, run, torchrun
from support.values import COMPLEX, DTYPES, FLOATS, FP8, ops_of

DOCS = TESTS.parent.parent.parent / "docs" / "pytorch.md"
DEADLINE = 60


def tables() -> dict[str, list[list[str]]]:
    """{first cell of the head: rows of cells}"""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for line in DOCS.read_text().splitlines():
        if not line.startswith("|"):
            rows = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if set(line) <= set("|-: "):
            continue
        if not rows:
            rows = [cells]
            found[cells[0]] = rows
        else:
            rows.append(cells)
    return {name: rows[1:] for name, rows in found.items()}


def names_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_calls() -> None:
    """Each call that the tests check is in the table, and each in the table is one of torch.distributed."""
    documented = {name for row in tables()["call"] for name in names_in(row[0])}
    checked = {name for name in [*calls.REDUCING, *calls.MOVING] if hasattr(torch.distributed, name)}
    assert checked <= documented
    assert all(hasattr(torch.distributed, name) for name in documented)
    with_tests_of_their_own = {
        "send", "recv", "isend", "irecv", "batch_isend_irecv", "barrier", "all_gather_object", "gather_object",
        "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list"}
    assert documented - checked == with_tests_of_their_own


def test_types() -> None:
    """The operations of each type are those that the tests check."""
    documented: dict[str, set[str]] = {}
    for types, ops in tables()["types"]:
        for name in names_in(types):
            documented[name] = set(names_in(ops)) - {"PREMUL_SUM"}
    assert documented == {str(dtype).removeprefix("torch."): {str(op).split(".")[-1] for op in ops_of(dtype)}
                          for dtype in DTYPES}
    premul = {name for types, ops in tables()["types"] if "PREMUL_SUM" in ops for name in names_in(types)}
    assert premul == {str(dtype).removeprefix("torch.") for dtype in [*FLOATS, *FP8, *COMPLEX]}  # test_premul_sum


def test_links() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", DOCS.read_text()):
        assert (DOCS.parent / target).exists(), target


@pytest.mark.skipif(BACKEND != "tutti", reason="the programs name Tutti")
def test_programs(tmp_path: pathlib.Path) -> None:
    """Both blocks, one inside the other: looked at before the group is destroyed."""
    first, second = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    head, end, rest = first.partition("dist.destroy_process_group()")
    assert end
    inside = second.replace('tutti_torch.abort(reason="no more data")', "assert callable(tutti_torch.abort)")
    assert inside != second
    program = tmp_path / "program.py"
    program.write_text(head + inside + end + rest)
    ended = run(torchrun(2, str(program)), DEADLINE)
    assert ended.status == 0, ended.output
    assert ended.output.count("[1.0, 1.0, 1.0, 1.0]") == 2, ended.output
