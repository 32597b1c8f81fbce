#!/usr/bin/env python3
"""The stages of ./dev gpu: what needs a GPU, one after another, each with a time limit of its own.

    scripts/gpu_stages.py                       # every stage that has not passed yet
    scripts/gpu_stages.py build test            # these, whether they have passed or not
    scripts/gpu_stages.py --dry-run             # show each command, run none

A stage that fails stops no other one (but nothing runs that build has not built). What came of each stands, as soon as it
has ended, in OUT/stages.json and OUT/stages.md, what it said in OUT/logs/STAGE.log; so a run that was cut off goes on where
it was. OUT is perf/results/<machine>/<date>-<commit>, unless --out says another. A stage that cannot run here is "not run",
with the reason. Exit status: 1 when a stage has failed or nothing could run.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "perf"))
sys.dont_write_bytecode = True

import compare  # noqa: E402
import gpu as benchmarks  # noqa: E402

BUILD = "build-gpu"
KERNELS = os.environ.get("TUTTI_KERNELS") or str(ROOT / BUILD / "kernels.fatbin")  # compiled once, by build or before
TORCH_TESTS = "training/torch_backend/tests"
LIMIT = 540  # seconds of a stage: with what starts and reports it, less than ten minutes
GRACE = 5  # seconds that a command has to end by itself
PASSED = "passed"

Environment = dict[str, str]


@dataclasses.dataclass
class Command:
    words: list[str]
    environment: Environment = dataclasses.field(default_factory=dict)
    limit: float = LIMIT  # seconds; less, where one that hangs must leave time to the others

    def __str__(self) -> str:
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), shlex.join(self.words)])


@dataclasses.dataclass
class Stage:
    name: str
    what: str
    preparations: list[Command]  # a failure ends the stage
    commands: list[Command]      # which do not need each other
    needs: list[Callable[[], str | None]] = dataclasses.field(default_factory=list)  # None, or why it cannot run
    limit: float = LIMIT


# ---- What a stage needs ----

def has_been_built() -> str | None:
    return None if pathlib.Path(BUILD, "bin", "tutti").exists() else "it has not been built: ./dev gpu build"


def has_gpu() -> str | None:
    """The library's own answer; None when there is one."""
    try:
        done = subprocess.run([f"{BUILD}/bin/tutti", "info", "--json"], capture_output=True, text=True, timeout=60)
        gpus = json.loads(done.stdout)["gpus"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return f"{BUILD}/bin/tutti info does not answer ({type(error).__name__})"
    return None if gpus["available"] else f"it needs a GPU: {gpus['why_not']}"


def has_program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"there is no {name}"


def has_cuda_torch() -> str | None:
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    try:
        done = subprocess.run(["python3", "-c", probe], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return "python3 does not answer"
    return None if done.returncode == 0 else "python3 has no PyTorch that finds a GPU"


def has_nccl_tests(folder: pathlib.Path) -> Callable[[], str | None]:
    return lambda: None if (folder / "Makefile").exists() else (
        f"there are no sources of nccl-tests in {folder}: take them along by ./dev gpu --carry --nccl-tests FOLDER")


# ---- The stages ----

def build_stage(options: argparse.Namespace) -> Stage:
    off = ["-DTUTTI_TRAINING=OFF", "-DTUTTI_EXAMPLES=OFF"]
    return Stage("build", "the library, its tests and benchmarks", [
        Command(["cmake", "-G", "Ninja", "-S", ".", "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_CUDA=ON", *off]),
        Command(["cmake", "--build", BUILD, "--parallel", options.jobs], {"NINJA_STATUS": "[%f/%t, %e s] "})], [])


def test_stage(options: argparse.Namespace) -> Stage:
    return Stage("test", "the tests that use the driver, and every collective, type and operation on device memory", [], [
        Command(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "--timeout", "120", "-R",
                 r"^(gpu|device|cuda_ipc|nccl)\.|^topology.gpus|^perf.device", "-E", r"^device\.machine\."]),
        Command(["python3", "-B", "perf/gpu.py", "--bin", f"{BUILD}/bin", "--timeout", "60", "check"])],
        [has_been_built, has_gpu])


def device_stage(options: argparse.Namespace) -> Stage:
    """Beside check: groups, several communicators, hosts, what is refused, ranks that differ, stay away or die. One program at a
    time, since each expects the GPU to itself, and one that hangs leaves time to the next."""
    driver = {"TUTTI_TEST_DRIVER": "machine"}
    return Stage("device", "the tests of device memory, which the fake driver serves elsewhere, on this machine's driver", [], [
        Command([f"{BUILD}/tests/test_device", f"--file={name}"], driver, limit=150)
        for name in ("communicator", "groups", "residency", "communicator_processes", "far_processes")], [has_been_built, has_gpu])


def sanitize_stage(options: argparse.Namespace) -> Stage:
    """A sample, since each access is watched. Ranks as threads have kernels that wait for each other, which a tool may keep
    from running side by side; those of processes never wait. So one that hangs soon gives way to the next."""
    commands = []
    for tool in ["memcheck", "racecheck", "initcheck", "synccheck"]:
        for ranks in ["--ranks", "-t"]:
            for program in ["all_reduce", "all_gather", "reduce_scatter", "sendrecv"]:
                commands.append(Command(["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--error-exitcode", "9",
                                         f"{BUILD}/bin/{program}_perf", ranks, "2", "--memory", "device", "-b", "64", "-e", "64K",
                                         "-f", "32", "-n", "1", "-w", "0", "-c", "1", "-T", "20"], limit=60))
    return Stage("sanitize", "compute-sanitizer on a sample", [], commands,
                 [has_been_built, has_gpu, has_program("compute-sanitizer")])


def bench_command(options: argparse.Namespace, *words: str) -> Command:
    given = ["--nccl", str(options.nccl)] if options.nccl else []
    return Command(["python3", "-B", "perf/gpu.py", "bench", "--bin", f"{BUILD}/bin", "--out", str(options.out),
                    "--budget", str(LIMIT - 40), "--resume", *given, *words])


def bench_stage(options: argparse.Namespace) -> Stage:
    return Stage("bench", "how fast it is with 2 and 4 ranks, beside the GPU's own copy, host loops and NCCL", [],
                 [bench_command(options, "--threads", "2", "4", "--processes", "2", "4")], [has_been_built, has_gpu])


def bench_ranks_stage(options: argparse.Namespace) -> Stage:
    """As often as it takes: each run goes on where the last one's time was over."""
    return Stage("bench-ranks", "how fast it is with other numbers of ranks, 1 to 8", [],
                 [bench_command(options, "--threads", "1", "3", "5", "6", "7", "8", "--processes", "3", "5", "6", "7", "8",
                                "--no-nccl")], [has_been_built, has_gpu])


def torch_nccl_stage(options: argparse.Namespace) -> Stage:
    """One process for each rank, all on GPU 0 if there is one, which NCCL itself refuses before 2.30."""
    preloaded = {"LD_PRELOAD": str(ROOT / BUILD / "libtutti_nccl.so"), "TUTTI_DETERMINISTIC": "1"}
    return Stage("torch-nccl", "PyTorch's own DDP and FSDP2, backend nccl, on libtutti_nccl.so", [],
                 [Command(beside_one_process("nccl", way, ranks), preloaded) for ranks in (2, 4) for way in ("ddp", "fsdp2")],
                 [has_been_built, has_gpu, has_cuda_torch])


def beside_one_process(backend: str, way: str, ranks: int) -> list[str]:
    return ["python3", "-B", f"{TORCH_TESTS}/beside_one_process.py", "--backend", backend, "--device", "cuda", "--parallel", way,
            "--ranks", str(ranks)]


def nccl_tests_stage(options: argparse.Namespace) -> Stage:
    """Ranks of one thread, which is why they may share a GPU: with a thread each, one would wait for the device while its
    kernels wait for that one. one_gpu.so tells nccl-tests of as many GPUs as it asks for."""
    room = f"{BUILD}/nccl-tests"
    preparations = [
        Command(["mkdir", "-p", f"{room}/lib"]),
        Command(["ln", "-sf", str(ROOT / BUILD / "libtutti_nccl.so"), f"{room}/lib/libnccl.so"]),
        Command(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", f"{room}/one_gpu.so", "tests/nccl/one_gpu.c", "-ldl"]),
        Command(["make", "-C", str(options.nccl_tests / "src"), "-j", options.jobs, f"BUILDDIR={ROOT / room}", "build",
                 f"NVCC_GENCODE=-gencode=arch=compute_{options.architecture},code=sm_{options.architecture}",
                 f"NCCL_HOME={options.nccl_home}", f"CUDA_HOME={options.cuda_home}"],
                # The runtime as a shared library: one_gpu.so stands before it.
                {"LIBRARY_PATH": str(ROOT / room / "lib"), "NVCC_APPEND_FLAGS": "--cudart=shared"})]
    run = ["python3", "-B", "tests/nccl/nccl_tests.py", "--bin", room, "--library", f"{BUILD}/libtutti_nccl.so",
           "--one-gpu", f"{room}/one_gpu.so"]
    libraries = os.pathsep.join([f"{options.cuda_home}/lib64", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    commands = [Command([*run, "--ranks", str(ranks)], {"LD_LIBRARY_PATH": libraries}) for ranks in (2, 4)]
    return Stage("nccl-tests", "nccl-tests on libtutti_nccl.so, results checked", preparations, commands,
                 [has_nccl_tests(options.nccl_tests), has_been_built, has_gpu, has_program("nvcc"), has_program("make")])


def torch_stage(options: argparse.Namespace) -> Stage:
    """Those of the backend's own tests that take a device, and trainings."""
    room = f"{BUILD}/torch_backend"
    there = {"PYTHONPATH": str(ROOT / room)}
    suite = ["python3", "-B", f"{TORCH_TESTS}/run_in_ranks.py"]
    tests = [f"{TORCH_TESTS}/in_ranks/test_{name}.py" for name in ("collectives", "programs")]
    device = {**there, "TUTTI_TORCH_TEST_DEVICE": "cuda", "TUTTI_TORCH_TEST_DEADLINE": "150"}
    return Stage("torch", "the PyTorch backend on CUDA tensors", [
        Command(["cmake", "-G", "Ninja", "-S", "training/torch_backend", "-B", room, "-DCMAKE_BUILD_TYPE=Release",
                 f"-DPython_EXECUTABLE={shutil.which('python3')}"], {"TUTTI_KERNELS": KERNELS}),
        Command(["cmake", "--build", room, "--parallel", options.jobs, "--target", "_C"])], [
        *(Command([*suite, str(ranks), *tests], device) for ranks in (2, 4)),
        *(Command(beside_one_process("tutti", way, ranks), {**there, "TUTTI_DETERMINISTIC": "1"})
          for ranks in (2, 4) for way in ("ddp", "fsdp2"))],
        [has_been_built, has_gpu, has_cuda_torch])


def training_stage(options: argparse.Namespace) -> Stage:
    room = f"{BUILD}/training"
    prefix = "import torch; print(torch.utils.cmake_prefix_path)"
    off = [f"-DTUTTI_{part}=OFF" for part in ("TESTS", "PERF", "EXAMPLES")]
    preparations = [
        Command(["sh", "-c", f'cmake -G Ninja -S . -B {room} -DCMAKE_BUILD_TYPE=Release -DTUTTI_CUDA=ON {" ".join(off)} '
                             f'-DTUTTI_KERNELS={KERNELS} -DTorch_DIR="$(python3 -c \'{prefix}\')/Torch"']),
        Command(["cmake", "--build", room, "--parallel", options.jobs, "--target", "train_gpt", "train_vision"])]
    commands = []
    for ranks in ("2", "4"):
        for way in (["ddp"], ["zero2"], ["fsdp"], ["fsdp", "--offload"], ["pipeline"], ["tensor"]):
            commands.append(Command([f"{room}/bin/train_gpt", "--device", "cuda", "--ranks", ranks, "--parallel", *way,
                                     "--deterministic", "--steps", "20", "--check"]))
    commands.append(Command([f"{room}/bin/train_vision", "--device", "cuda", "--ranks", "2", "--steps", "20"]))
    # NCCL wants a GPU for each rank. Its plug-in belongs to the benchmarks.
    commands.append(Command([f"{room}/bin/train_gpt", "--device", "cuda", "--ranks", str(len(gpu_property("name")) or 1),
                             "--parallel", "ddp", "--backend", "nccl", "--steps", "20", "--check"],
                            {"TUTTI_BASELINES": str(ROOT / BUILD / "lib")}))
    return Stage("training", "the trainers with --device cuda, each beside one process", preparations, commands,
                 [has_been_built, has_gpu, has_cuda_torch])


STAGES = {"build": build_stage, "test": test_stage, "device": device_stage, "bench": bench_stage, "torch-nccl": torch_nccl_stage,
          "nccl-tests": nccl_tests_stage, "sanitize": sanitize_stage, "torch": torch_stage, "training": training_stage,
          "bench-ranks": bench_ranks_stage}


# ---- Running them ----

def end(process: subprocess.Popen) -> None:
    """It and all that it started: asked first, since some of those have sessions of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run_command(command: Command, log: pathlib.Path, seconds: float) -> str | None:
    """What it says goes to the end of `log`. Returns None, or in words how it failed."""
    with log.open("a") as file:
        print(f"\n$ {command}", file=file, flush=True)
        try:
            process = subprocess.Popen(command.words, env={**os.environ, **command.environment}, stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
        except OSError as error:
            return f"{command.words[0]} cannot be started: {error.strerror}"
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"it did not end within {seconds:.0f} s"
        finally:
            end(process)
    return None if status == 0 else f"it ended with status {status}"


def last_lines(log: pathlib.Path, count: int) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-count:]


def run_stage(stage: Stage, out: pathlib.Path, seconds: float) -> dict:
    """Its outcome: what came of it, how long it took, and what failed."""
    for need in stage.needs:
        if why := need():
            print(f"  not run: {why}", flush=True)
            return {"outcome": "not run", "seconds": 0, "failures": [why]}
    log = out / "logs" / f"{stage.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    begin, failures = time.monotonic(), []
    for command in [*stage.preparations, *stage.commands]:
        since = time.monotonic()
        why = run_command(command, log, max(1.0, min(command.limit, begin + seconds - since)))
        print(f"  {'FAILED' if why else 'done'} after {time.monotonic() - since:.0f} s: {command}", flush=True)
        if why is None:
            continue
        failures.append(f"{why}: {command}")
        print("\n".join(f"    | {line}" for line in last_lines(log, 15)) + f"\n    {why}; all of it is in {log}", flush=True)
        if command in stage.preparations or time.monotonic() - begin >= seconds:
            break
    return {"outcome": "FAILED" if failures else PASSED, "seconds": round(time.monotonic() - begin), "failures": failures}


class Outcomes:
    """What came of the stages, kept in OUT from run to run."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        try:
            self.of = json.loads((out / "stages.json").read_text())
        except (OSError, ValueError):
            self.of = {}

    def passed(self, name: str) -> bool:
        return self.of.get(name, {}).get("outcome") == PASSED

    def keep(self, name: str, outcome: dict) -> None:
        self.of[name] = outcome
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "stages.json").write_text(json.dumps(self.of, indent=2) + "\n")
        (self.out / "stages.md").write_text(self.text())

    def text(self) -> str:
        lines = ["# ./dev gpu: what came of each stage", "", "| stage | outcome | seconds | |", "|---|---|---|---|"]
        for name in STAGES:
            outcome = self.of.get(name, {"outcome": "not run", "seconds": 0, "failures": ["nobody has asked for it yet"]})
            failures = "<br>".join(outcome["failures"]).replace("|", "\\|")
            lines.append(f"| {name} | {outcome['outcome']} | {outcome['seconds']} | {failures} |")
        return "\n".join(lines) + "\n"


# ---- What is asked for ----

def gpu_property(name: str) -> list[str]:
    """Of each GPU, as nvidia-smi says it; none without one."""
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def default_out() -> pathlib.Path:
    machine = {**compare.describe_machine(None), "gpus": [{"name": name} for name in gpu_property("name")]}
    return ROOT / "perf" / "results" / benchmarks.folder_name(machine)


def nccl_home() -> str:
    """Where nccl.h is: beside PyTorch's NCCL."""
    done = subprocess.run(["python3", "-c", "import nvidia.nccl as n; print(list(n.__path__)[0])"], capture_output=True, text=True)
    return done.stdout.strip() or "/usr"


def cuda_home() -> str:
    """The toolkit of the nvcc that is found, where that says it."""
    home = pathlib.Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
    return str(home) if (home / "include" / "cuda_runtime.h").exists() else "/usr/local/cuda"


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} [all that have not passed]")
    parser.add_argument("--dry-run", action="store_true", help="show each command, run none")
    parser.add_argument("--out", type=pathlib.Path, help="where results go [perf/results/<machine>/<date>-<commit>]")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="end within this time; 0: no such end [0]")
    parser.add_argument("--nccl-tests", type=pathlib.Path, default=ROOT / ".carry" / "nccl-tests", metavar="FOLDER",
                        help="the sources of nccl-tests [.carry/nccl-tests]")
    parser.add_argument("--nccl", type=pathlib.Path, metavar="FOLDER",
                        help="with a libnccl.so.2 to measure; 2.30.3 or newer lets ranks share a GPU [what the loader finds]")
    parser.add_argument("--jobs", default=str(os.cpu_count()), metavar="N", help="compilers at a time [one per core]")
    options = parser.parse_args(words)
    for name in options.stages:
        if name not in STAGES:
            parser.error(f"'{name}' is none of the stages {', '.join(STAGES)}")
    options.out = (options.out or default_out()).absolute()
    options.nccl_tests = options.nccl_tests.absolute()
    options.nccl_home = nccl_home()
    options.cuda_home = cuda_home()
    options.architecture = (gpu_property("compute_cap") or ["9.0"])[0].replace(".", "")
    return options


def show(stages: list[Stage]) -> int:
    for stage in stages:
        print(f"\n{stage.name}: {stage.what}; at most {stage.limit:.0f} s", *stage.preparations, *stage.commands, sep="\n  ")
    return 0


def main() -> int:
    options = parse_arguments()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what runs is ended, too
    outcomes = Outcomes(options.out)
    names = options.stages or [name for name in STAGES if options.dry_run or not outcomes.passed(name)]
    stages = [STAGES[name](options) for name in names]
    if options.dry_run:
        return show(stages)
    begin, ran, failed = time.monotonic(), 0, 0
    for stage in stages:
        left = options.budget - (time.monotonic() - begin) if options.budget else stage.limit
        if left <= GRACE:
            print(f"\n{stage.name}: not begun, the time is over ({options.budget:.0f} s)", flush=True)
            continue
        print(f"\n{stage.name}: {stage.what}", flush=True)
        outcome = run_stage(stage, options.out, min(stage.limit, left))
        outcomes.keep(stage.name, outcome)
        ran += outcome["outcome"] != "not run"
        failed += outcome["outcome"] == "FAILED"
    print(f"\ngpu: {ran} of {len(stages)} stages have run, {failed} failed; {options.out / 'stages.md'}")
    return 1 if failed or (stages and not ran) else 0


if __name__ == "__main__":
    sys.exit(main())
