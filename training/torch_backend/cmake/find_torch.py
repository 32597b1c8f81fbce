"""Prints the folder and the version of the PyTorch that this Python will run with, as a CMake list.

It is looked for on disk and not imported: in a build in isolation the environment's packages cannot be imported.
"""

import importlib.util
import pathlib
import re
import site
import sys


def folders() -> list[pathlib.Path]:
    """Where torch may be, the likeliest first."""
    spec = importlib.util.find_spec("torch")
    found = [] if spec is None or spec.origin is None else [pathlib.Path(spec.origin).parent]
    packages = site.getsitepackages([sys.prefix])
    settings = pathlib.Path(sys.prefix) / "pyvenv.cfg"  # of a virtual environment
    if not settings.is_file() or re.search(r"(?i)include-system-site-packages *= *true", settings.read_text()):
        packages += [site.getusersitepackages(), *site.getsitepackages([sys.base_prefix])]
    return found + [pathlib.Path(path) / "torch" for path in dict.fromkeys(packages)]


for folder in folders():
    version_file = folder / "version.py"
    if version_file.is_file() and (folder / "include" / "torch" / "csrc" / "distributed" / "c10d").is_dir():
        version = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", version_file.read_text(), re.MULTILINE)
        if version is not None:
            print(f"{folder};{version.group(1)}", end="")
            sys.exit(0)
sys.exit("Looked in: " + ", ".join(str(folder) for folder in folders()))
