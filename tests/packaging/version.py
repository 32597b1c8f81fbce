"""packaging.version: every file that names Tutti's version names that of CMakeLists.txt. version.py SOURCE_FOLDER"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(sys.argv[1])
FILES = ["*.md", "docs/*.md", "examples/*/CMakeLists.txt", "training/*/CMakeLists.txt"]  # where users are told a version


def text_of(name):
    return (SOURCE / name).read_text()


def main():
    version = re.search(r"^project\(tutti VERSION ([0-9.]+)", text_of("CMakeLists.txt"), re.MULTILINE).group(1)
    minor = ".".join(version.split(".")[:2])
    problems = []

    def expect(name, pattern, wanted):
        """All that the pattern's group finds in the file is what is wanted, and it finds something."""
        found = re.findall(pattern, text_of(name), re.MULTILINE)
        if set(found) != {wanted}:
            problems.append(f"{name}: has {', '.join(found) or 'nothing'} for {pattern}; expected {wanted}")

    expect("training/torch_backend/CMakeLists.txt", r"^project\(tutti_torch VERSION ([0-9.]+)", version)
    expect("training/torch_backend/pyproject.toml", r'^dynamic = \["(version)"', "version")
    expect("examples/kubernetes/mpi_job.yaml", r"image: .*/tutti:(\S+)", minor)
    telling = [path.relative_to(SOURCE) for files in FILES for path in sorted(SOURCE.glob(files))
               if re.search(r"find_package\(tutti \d", path.read_text())]
    for path in telling:
        expect(path, r"find_package\(tutti ([0-9.]+)", minor)
    if len(telling) < 4:
        problems.append(f"only {len(telling)} files tell users of find_package(tutti ...): are FILES the right ones?")

    changes = text_of("CHANGELOG.md")
    released = re.findall(r"^## \[?(\d[0-9.]*)\]? - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    if not released or released[0][0] != version:
        problems.append(f"CHANGELOG.md: its newest release is {released[0][0] if released else 'none'}; expected {version}")
    if [day for _, day in released] != sorted((day for _, day in released), reverse=True):
        problems.append("CHANGELOG.md: its releases are not in the order of their dates")
    if "## [Unreleased]" not in changes:
        problems.append("CHANGELOG.md: it has no section [Unreleased]")

    for problem in problems:
        print(problem)
    print(f"packaging.version: {version}, {len(telling) + 4} files, {len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
