"""launch.docs: runs every block of docs/running.md that is marked `sh`, as written.

    docs.py BUILD_FOLDER SOURCE_FOLDER

A block whose lines end with `# on HOST` is a job that is started by hand: its lines run at the same time, each on its
host. One that names alpha, beta or gamma runs on the first of these (scripts/hosts.py); the others run here. All have to end
with status 0 before their deadline; `build/` is read as BUILD_FOLDER/, and torchrun as that of .venv. Status 77, with a line
that says why, when a block could not be run here and none has failed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

NOT_RUN = 77
DEADLINE = 120  # seconds for each, so that a hang ends; they take a few
PAGE = "docs/running.md"


class NotRun(Exception):
    pass


def command_of(line, build, source):
    """The line for a shell here. Raises NotRun when what it starts is not installed."""
    for tool in ("mpirun", "mpiexec.hydra"):
        if re.search(rf"^{re.escape(tool)} ", line, re.MULTILINE) and shutil.which(tool) is None:
            raise NotRun(f"no {tool}")
    if line.startswith("torchrun "):
        python = source / ".venv/bin/python"
        if subprocess.run(["sh", "-c", f"{python} -c 'import torch.distributed.run'"], capture_output=True).returncode != 0:
            raise NotRun(f"no PyTorch in {python}")
        line = line.replace("torchrun ", f"{python} -m torch.distributed.run ", 1)
    return line.replace("build/", f"{build}/")


def run_all(commands, environment):
    """Runs the commands at the same time; what they wrote, and the first status that is not 0."""
    started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for command in commands]
    written, status = "", 0
    for process in started:
        try:
            written += process.communicate(timeout=DEADLINE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            written += process.communicate()[0] + f"killed after {DEADLINE} s\n"
        status = status or process.returncode
    return written, status


def run_block(block, build, source, hosts):
    """What it wrote, and its status."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "OMPI_", "PMI"))}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TUTTI_TIMEOUT": "60s",
                    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1"}
    by_host = [re.fullmatch(r"(.*?)  # on (\w+)", line) for line in block.splitlines()]
    if all(by_host):
        commands = {match[2]: command_of(match[1], build, source) for match in by_host}
    elif re.search(r"\b(alpha|beta|gamma)\b", block):
        commands = {"alpha": command_of(block, build, source)}
    else:
        return run_all([["bash", "-ec", command_of(block, build, source)]], environment)
    try:
        with hosts.Hosts(3) as three:
            places = {name: number for number, name in enumerate(three.names)}
            return run_all([three.enter(places[host], "bash", "-ec", command) for host, command in commands.items()],
                           environment | (three.environment() if not all(by_host) else {}))
    except hosts.Unavailable as reason:
        raise NotRun(str(reason)) from reason


def main():
    build, source = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    os.chdir(source)
    sys.path.insert(0, str(source / "scripts"))
    import hosts  # pylint: disable=import-outside-toplevel

    blocks = re.findall(r"^```sh\n(.*?)^```$", (source / PAGE).read_text(), re.MULTILINE | re.DOTALL)
    if not blocks:
        sys.exit(f"{PAGE}: no block found")
    failed = not_run = 0
    for block in blocks:
        print(block.rstrip(), flush=True)
        try:
            written, status = run_block(block.rstrip(), build, source, hosts)
        except NotRun as reason:
            print(f"-- not run: {reason}\n")
            not_run += 1
            continue
        if status != 0 and re.search("no network to the other hosts: .*(this build has none|not found)", written):
            print("-- not run: no network between hosts in this build\n")
            not_run += 1
            continue
        print(f"{written}-- status {status}\n")
        failed += status != 0
    print(f"{PAGE}: {len(blocks)} blocks, {failed} failed, {not_run} not run")
    return 1 if failed else NOT_RUN if not_run else 0


if __name__ == "__main__":
    sys.exit(main())
