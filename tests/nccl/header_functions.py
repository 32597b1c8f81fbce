"""The names of the functions in NVIDIA's headers."""

import pathlib
import re

DECLARATION = re.compile(r"^[\w\s*]*?\b(p?nccl\w+)\s*\(", re.MULTILINE)
HOST_FUNCTION = re.compile(r"^NCCL_EXTERN_C (?!NCCL_HOST_DEVICE_INLINE)[\w\s*]*?\b(nccl\w+)\(", re.MULTILINE)


def functions_of(include: pathlib.Path) -> set[str]:
    """All names in nccl.h, which has both of each function, and those of nccl_device's, which has one."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", "", (include / "nccl.h").read_text(), flags=re.DOTALL | re.MULTILINE)
    names = set(DECLARATION.findall(text))
    for header in sorted((include / "nccl_device").rglob("*.h")):
        names |= {prefix + name for name in HOST_FUNCTION.findall(header.read_text()) for prefix in ("", "p")}
    return names
