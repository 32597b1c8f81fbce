"""The package as Python sees it: importing, its types, another torch than it was built for."""
import ast
import pathlib
import sys
import tempfile
import venv

import pytest

from support.launch import BACKEND, TESTS, run

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="Tutti's package")
DEADLINE = 60


def python(program: str) -> str:
    ended = run([sys.executable, "-c", program], DEADLINE)
    assert ended.status == 0, ended.output
    return ended.output


def test_import_twice() -> None:
    python("import tutti_torch, importlib; importlib.reload(tutti_torch); import torch.distributed as dist; "
           "assert dist.is_backend_available('tutti')")


def test_another_torch_is_told() -> None:
    """Before anything of the extension is loaded, since that would be a message about symbols."""
    output = python("import torch; torch.__version__ = '1.2.3'\n"
                    "try:\n  import tutti_torch\nexcept ImportError as error:\n  print('told:', error)")
    assert "told:" in output and "1.2.3" in output


def test_without_import() -> None:
    output = python("import torch.distributed as dist\n"
                    "try:\n  dist.init_process_group('tutti', init_method='tcp://127.0.0.1:1', rank=0, world_size=1)\n"
                    "except Exception as error:\n  print('told:', error)")
    assert "told:" in output and "tutti" in output.lower()


def test_everything_public_is_typed() -> None:
    import tutti_torch
    folder = pathlib.Path(tutti_torch.__file__).parent
    assert (folder / "py.typed").exists()
    for name in tutti_torch.__all__:
        assert getattr(tutti_torch, name).__doc__, name
    sources = [*folder.glob("*.py"), *folder.glob("*.pyi")]
    assert folder / "_C.pyi" in sources
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.args, *node.args.kwonlyargs]
                untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
                assert node.returns is not None and not untyped, f"{source.name}: {node.name}"


def test_the_source_folder_is_told() -> None:
    """Python that starts where the source is would import that, which has no extension."""
    output = python(f"import sys; sys.path.insert(0, {str(TESTS.parent)!r})\n"
                    "try:\n  import tutti_torch\nexcept ImportError as error:\n  print('told:', error)")
    assert "told:" in output and "another folder" in output


def test_the_build_finds_torch() -> None:
    """Of the environment, without importing it; in one that has none it says where it looked."""
    import torch
    find = str(TESTS.parent / "cmake" / "find_torch.py")
    found = run([sys.executable, find], DEADLINE)
    assert found.output == f"{pathlib.Path(torch.__file__).parent};{torch.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, symlinks=True)
        empty = run([f"{folder}/bin/python", find], DEADLINE, PYTHONPATH="")
    assert empty.status == 1 and f"Looked in: {folder}" in empty.output, empty.output


def test_no_import_of_the_extension_alone() -> None:
    """What needs torch's libraries says so by loading them."""
    python("import tutti_torch._C")
