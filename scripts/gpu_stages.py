#!/usr/bin/env python3
"""The stages of ./dev gpu: what needs a GPU, the most valuable first.

    scripts/gpu_stages.py                       # goes on for eight minutes with what has not passed yet
    scripts/gpu_stages.py --minutes 0           # with all of it
    scripts/gpu_stages.py correct bench         # these stages, from their beginning
    scripts/gpu_stages.py --dry-run             # show each command, run none

Each stage builds what it needs. One that fails stops no other one, and runs again when all others have ended. What came of
them stands in OUT/stages.md (gpu_run.py), so the next call goes on behind the last command that has ended. OUT is
perf/results/<machine>/<date>-<commit>, unless --out says another. A stage that cannot run here is "not run", with the
reason. Exit status: 1 when a stage has failed or nothing could run.
"""
import argparse
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "perf" / "compare"), str(ROOT / "perf"), str(ROOT / "scripts")]
sys.dont_write_bytecode = True

import compare  # noqa: E402
import gpu as benchmarks  # noqa: E402
from gpu_run import FAILED, LEAST, LEFT, NO_END, NOT_RUN, PASSED, SLICE, Command, Need, Outcomes, Stage, StageRun  # noqa: E402

BUILD = "build-gpu"
CARRIED_KERNELS = os.environ.get("TUTTI_KERNELS", "")  # none: the first stage compiles them
TORCH_TESTS = "training/torch_backend/tests"
# Tests by ctest's names. Those of device memory run on the fake driver elsewhere, the others skip where there is no GPU.
DRIVER_TESTS = ["gpu.memory", "cuda_ipc.arena", "cuda_ipc.processes", "topology.gpus", "device.driver"]
DEVICE_TESTS = [f"device.{name}" for name in ("communicator", "groups", "residency", "communicator_processes", "remote_processes")]
LEFT_OUT = [("perf", "results"), ("perf", "out")]  # of the tree: what runs leave
SANITIZED_FIRST = ["all_reduce", "sendrecv"]  # a kernel of each kind: plans, messages
SANITIZED_LATER = ["all_gather", "reduce_scatter", "reduce", "broadcast"]


# ---- What a stage needs ----

@functools.cache
def has_gpu() -> str | None:
    """The library's own answer; None when there is one."""
    try:
        done = subprocess.run([f"{BUILD}/bin/tutti", "info", "--json"], capture_output=True, text=True, timeout=60)
        gpus = json.loads(done.stdout)["gpus"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return f"{BUILD}/bin/tutti info does not answer ({type(error).__name__})"
    return None if gpus["available"] else f"it needs a GPU: {gpus['why_not']}"


def has_program(name: str) -> Need:
    return lambda: None if shutil.which(name) else f"there is no {name}"


def python_says(program: str, why_not: str) -> Need:
    def answer() -> str | None:
        try:
            done = subprocess.run(["python3", "-c", program], capture_output=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return "python3 does not answer"
        return None if done.returncode == 0 else why_not
    return answer


has_torch = python_says("import torch", "python3 has no PyTorch")
has_cuda_torch = python_says("import sys, torch; sys.exit(not torch.cuda.is_available())",
                             "python3 has no PyTorch that finds a GPU")


def torch_needs(options: argparse.Namespace) -> list[Need]:
    return [has_torch] if options.rehearsal else [has_torch, has_cuda_torch]


def has_nccl_tests(folder: pathlib.Path) -> Need:
    return lambda: None if (folder / "Makefile").exists() else (
        f"there are no sources of nccl-tests in {folder}: take them along by ./dev gpu --bundle --nccl-tests FOLDER")


# ---- The stages ----

def built(options: argparse.Namespace, *targets: str, training: str = "OFF") -> list[Command]:
    """The commands that make these targets, and the program that says whether there is a GPU, of one build folder."""
    torch = '-DTorch_DIR="$(python3 -c \'import torch; print(torch.utils.cmake_prefix_path)\')/Torch"'
    configure = ["cmake", "-G", "Ninja", "-S", ".", "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_CUDA=ON",
                 "-DTUTTI_EXAMPLES=OFF", f"-DTUTTI_TRAINING={training}", f"-DTUTTI_KERNELS={CARRIED_KERNELS}",
                 f"-DTUTTI_CUDA_ARCHITECTURES={options.architecture}"]
    if training == "ON":
        configure = ["sh", "-c", f"{shlex.join(configure)} {torch}"]
    return [Command(configure),
            Command(["cmake", "--build", BUILD, "--parallel", options.jobs, "--target", "tutti", *targets],
                    {"NINJA_STATUS": "[%f/%t, %e s] "}, goes_on=True)]


def correct_stage(options: argparse.Namespace) -> Stage:
    """One command for each run of perf/gpu.py check."""
    runs = benchmarks.checks(*(("64K", 60) if options.rehearsal else ("3M", 20)))
    return Stage("correct", "every collective, type and operation on device memory, results compared",
                 built(options, *(f"{name}_perf" for name in benchmarks.PROGRAMS)),
                 [Command([f"{BUILD}/bin/{program}_perf", *words], limit=40) for _, program, words in runs], needs=[has_gpu])


def sanitize_commands(options: argparse.Namespace, programs: list[str]) -> list[Command]:
    """Ranks as threads have kernels that wait for each other, which a tool may keep from running side by side; those of
    processes never wait. So one that hangs soon gives way to the next. Initcheck does not see what another process writes:
    to it a peer's data is uninitialized."""
    most = "4K" if options.rehearsal else "64K"
    return [Command(["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--error-exitcode", "9",
                     f"{BUILD}/bin/{program}_perf", ranks, "2", "--memory", "device", "-b", "64", "-e", most,
                     "-f", "32", "-n", "1", "-w", "0", "-c", "1", "-T", "20"], limit=60)
            for program in programs for tool in ["memcheck", "racecheck", "initcheck", "synccheck"]
            for ranks in ["--ranks", "-t"] if (tool, ranks) != ("initcheck", "--ranks")]


def sanitize_stage(options: argparse.Namespace) -> Stage:
    return Stage("sanitize", "compute-sanitizer on a sample: a kernel of each kind",
                 built(options, *(f"{name}_perf" for name in SANITIZED_FIRST)), sanitize_commands(options, SANITIZED_FIRST),
                 [has_program("compute-sanitizer")], [has_gpu])


def sanitize_more_stage(options: argparse.Namespace) -> Stage:
    return Stage("sanitize-more", "compute-sanitizer on other collectives",
                 built(options, *(f"{name}_perf" for name in SANITIZED_LATER)), sanitize_commands(options, SANITIZED_LATER),
                 [has_program("compute-sanitizer")], [has_gpu])


def bench_command(options: argparse.Namespace, *words: str) -> Command:
    """As often as it takes: each run goes on where the last one's time was over."""
    given = ["--nccl", str(options.nccl)] if options.nccl else []
    small = ["--max", "16K", "--time", "0.001"] if options.rehearsal else []
    return Command(["python3", "-B", "perf/gpu.py", "bench", "--bin", f"{BUILD}/bin", "--out", str(options.out),
                    "--budget", LEFT, "--resume", *given, *small, *words], goes_on=True)


def bench_stage(options: argparse.Namespace) -> Stage:
    programs = [*(f"{name}_perf" for name in benchmarks.MEASURED), "roofline_device", "tutti_baseline_nccl"]
    return Stage("bench", "how fast it is with 2 and 4 ranks, compared with the GPU's own copy, host loops and NCCL",
                 built(options, *programs), [bench_command(options, "--threads", "2", "4", "--processes", "2", "4")],
                 needs=[has_gpu])


def bench_ranks_stage(options: argparse.Namespace) -> Stage:
    programs = [*(f"{name}_perf" for name in benchmarks.MEASURED), "roofline_device"]
    return Stage("bench-ranks", "how fast it is with other numbers of ranks, 1 to 8", built(options, *programs),
                 [bench_command(options, "--threads", "1", "3", "5", "6", "7", "8", "--processes", "3", "5", "6", "7", "8",
                                "--no-nccl")], needs=[has_gpu])


def device_stage(options: argparse.Namespace) -> Stage:
    """Beside correct: groups, several communicators, hosts, what is refused, ranks that differ, stay away or die. One at a time,
    since each expects the GPU to itself, and one that hangs leaves time to the next."""
    names = [*DRIVER_TESTS, *DEVICE_TESTS]
    return Stage("device", "the tests of the driver and of device memory, on this machine's driver",
                 built(options, *sorted({f"test_{name.split('.')[0]}" for name in names})),  # one program for each room
                 [Command(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R",
                           f"^{re.escape(name)}(\\.|$)"], {"TUTTI_TEST_DRIVER": "machine"}, limit=200) for name in names],
                 needs=[has_gpu])


def patience(options: argparse.Namespace) -> int:
    """How many times as long as on a GPU all may take."""
    return 6 if options.rehearsal else 1


def torch_device(options: argparse.Namespace) -> str:
    return "cpu" if options.rehearsal else "cuda"


def beside_one_process(options: argparse.Namespace, backend: str, way: str, ranks: int) -> list[str]:
    return ["python3", "-B", f"{TORCH_TESTS}/beside_one_process.py", "--backend", backend, "--device", torch_device(options),
            "--parallel", way, "--ranks", str(ranks)]


def torch_stage(options: argparse.Namespace) -> Stage:
    """Those of the backend's own tests that take a device, and trainings."""
    room = f"{BUILD}/torch_backend"
    there = {"PYTHONPATH": os.pathsep.join([str(ROOT / room), *filter(None, [os.environ.get("PYTHONPATH")])])}
    suite = ["python3", "-B", f"{TORCH_TESTS}/run_in_ranks.py"]
    tests = [f"{TORCH_TESTS}/in_ranks/test_{name}.py" for name in ("collectives", "programs")]
    device = {**there, "TUTTI_TORCH_TEST_DEVICE": torch_device(options),
              "TUTTI_TORCH_TEST_DEADLINE": str(150 * patience(options))}
    return Stage("torch", "the PyTorch backend on CUDA tensors", [
        *built(options, "tutti_static"),
        Command(["cmake", "-G", "Ninja", "-S", "training/torch_backend", "-B", room, "-DCMAKE_BUILD_TYPE=Release",
                 f"-DPython_EXECUTABLE={shutil.which('python3')}", f"-DTUTTI_TORCH_LIBRARY={ROOT / BUILD / 'libtutti.a'}"]),
        Command(["cmake", "--build", room, "--parallel", options.jobs, "--target", "_C"], goes_on=True)], [
        *(Command([*suite, str(ranks), *tests], device, limit=170) for ranks in (2, 4)),
        *(Command(beside_one_process(options, "tutti", way, ranks), {**there, "TUTTI_DETERMINISTIC": "1"}, limit=120)
          for ranks in (2, 4) for way in ("ddp", "fsdp2"))],
        torch_needs(options), [has_gpu])


def torch_nccl_stage(options: argparse.Namespace) -> Stage:
    """One process for each rank, all on GPU 0 if there is one, which NCCL itself refuses before 2.30."""
    preloaded = {"LD_PRELOAD": str(ROOT / BUILD / "libtutti_nccl.so"), "TUTTI_DETERMINISTIC": "1"}
    return Stage("torch-nccl", "PyTorch's own DDP and FSDP2, backend nccl, on libtutti_nccl.so", built(options, "tutti_nccl"),
                 [Command(beside_one_process(options, "nccl", way, ranks), preloaded, limit=120)
                  for ranks in (2, 4) for way in ("ddp", "fsdp2")], [has_cuda_torch], [has_gpu])


def nccl_tests_stage(options: argparse.Namespace) -> Stage:
    """Ranks of one thread, which is why they may share a GPU: with a thread each, one would wait for the device while its
    kernels wait for that one. one_gpu.so tells nccl-tests of as many GPUs as it asks for."""
    room = f"{BUILD}/nccl-tests"
    preparations = [
        *built(options, "tutti_nccl"),
        Command(["mkdir", "-p", f"{room}/lib"]),
        Command(["ln", "-sf", str(ROOT / BUILD / "libtutti_nccl.so"), f"{room}/lib/libnccl.so"]),
        Command(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", f"{room}/one_gpu.so", "tests/nccl/one_gpu.c", "-ldl"]),
        Command(["make", "-C", str(options.nccl_tests / "src"), "-j", options.jobs, f"BUILDDIR={ROOT / room}", "build",
                 f"NVCC_GENCODE=-gencode=arch=compute_{options.architecture},code=sm_{options.architecture}",
                 f"NCCL_HOME={options.nccl_home}", f"CUDA_HOME={options.cuda_home}"],
                # The runtime as a shared library: one_gpu.so stands before it.
                {"LIBRARY_PATH": str(ROOT / room / "lib"), "NVCC_APPEND_FLAGS": "--cudart=shared"}, goes_on=True)]
    run = ["python3", "-B", "tests/nccl/nccl_tests.py", "--bin", room, "--library", f"{BUILD}/libtutti_nccl.so",
           "--one-gpu", f"{room}/one_gpu.so"]
    libraries = os.pathsep.join([f"{options.cuda_home}/lib64", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    commands = [Command([*run, "--ranks", str(ranks)], {"LD_LIBRARY_PATH": libraries}) for ranks in (2, 4)]
    return Stage("nccl-tests", "nccl-tests on libtutti_nccl.so, results checked", preparations, commands,
                 [has_nccl_tests(options.nccl_tests), has_program("nvcc"), has_program("make")], [has_gpu])


def training_stage(options: argparse.Namespace) -> Stage:
    device = ["--device", torch_device(options)]
    steps = ["--steps", "2" if options.rehearsal else "20"]
    commands = []
    for ranks in ("2", "4"):
        for way in (["ddp"], ["zero2"], ["fsdp"], ["fsdp", "--offload"], ["pipeline"], ["tensor"]):
            commands.append(Command([f"{BUILD}/bin/train_gpt", *device, "--ranks", ranks, "--parallel", *way,
                                     "--deterministic", *steps, "--check"], limit=90))
    images = ["--images", "64" if options.rehearsal else "1000", "--test-images", "64", "--epochs", "1"]
    commands.append(Command([f"{BUILD}/bin/train_vision", *device, "--ranks", "2", *images, "--check"], limit=90))
    if not options.rehearsal:  # NCCL wants a GPU for each rank; its plug-in belongs to the benchmarks
        commands.append(Command([f"{BUILD}/bin/train_gpt", *device, "--ranks", str(len(gpu_property("name")) or 1),
                                 "--parallel", "ddp", "--backend", "nccl", *steps, "--check"],
                                {"TUTTI_BASELINE_PATH": str(ROOT / BUILD / "lib")}, limit=90))
    return Stage("training", "the trainers with --device cuda, each compared with one process",
                 built(options, "train_gpt", "train_vision", "tutti_baseline_nccl", training="ON"), commands,
                 torch_needs(options), [has_gpu])


# The most valuable first: docs/cuda.md says why.
STAGES = {"correct": correct_stage, "sanitize": sanitize_stage, "bench": bench_stage, "torch": torch_stage,
          "device": device_stage, "torch-nccl": torch_nccl_stage, "nccl-tests": nccl_tests_stage, "training": training_stage,
          "sanitize-more": sanitize_more_stage, "bench-ranks": bench_ranks_stage}


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
    folder = ROOT / "perf" / "results" / benchmarks.folder_name(machine)
    earlier = sorted(folder.parent.glob(f"*-{machine['commit']}"))  # a call after midnight goes on with it
    return earlier[-1] if earlier else folder


def tree_digest() -> str:
    """Of all files that a stage may build or run, committed or not: there may be no git here."""
    digest = hashlib.sha256()
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith((".", "build")) or not top.is_dir():
            continue
        for path in sorted(top.rglob("*")):
            if path.is_file() and path.suffix != ".pyc" and not path.relative_to(ROOT).parts[:2] in LEFT_OUT:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
    parser.add_argument("--minutes", type=float, default=SLICE / 60, metavar="M",
                        help=f"end within this time; 0: no such end [{SLICE // 60}]")
    parser.add_argument("--nccl-tests", type=pathlib.Path, default=ROOT / ".bundle" / "nccl-tests", metavar="FOLDER",
                        help="the sources of nccl-tests [.bundle/nccl-tests]")
    parser.add_argument("--nccl", type=pathlib.Path, metavar="FOLDER",
                        help="with a libnccl.so.2 to measure; 2.30.3 or newer lets ranks share a GPU [what the loader finds]")
    parser.add_argument("--rehearsal", action="store_true",
                        help="on GPUs that are played by threads: small sizes, and PyTorch's tensors on the CPU")
    parser.add_argument("--jobs", default=os.environ.get("TUTTI_JOBS") or str(os.cpu_count()), metavar="N",
                        help="compilers at a time [TUTTI_JOBS, or one per core]")
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
        print(f"\n{stage.name}: {stage.what}", *stage.preparations, *stage.commands, sep="\n  ")
    return 0


def summary(outcomes: Outcomes, ran: list[str]) -> str:
    left = [name for name in outcomes.left() if name not in ran or outcomes.outcome(name) not in (FAILED, NOT_RUN)]
    more = f"; left are {', '.join(left)}: ./dev gpu goes on with them" if left else ""
    count = sum(outcomes.outcome(name) == PASSED for name in outcomes.names)
    return f"\ngpu: {count} of {len(outcomes.names)} stages have passed{more}\nresults: {outcomes.out / 'stages.md'}"


def main() -> int:
    options = parse_arguments()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what runs is ended, too
    outcomes = Outcomes(options.out, list(STAGES), tree_digest())
    names = options.stages or (list(STAGES) if options.dry_run else outcomes.left())
    stages = [STAGES[name](options) for name in names]
    for command in [command for stage in stages for command in stage.commands]:
        command.limit *= patience(options)
    if options.dry_run:
        return show(stages)
    for name in options.stages:
        outcomes.forget(name)
    end = time.monotonic() + options.minutes * 60 if options.minutes else NO_END
    ran = []
    for stage in stages:
        if end - time.monotonic() < LEAST:
            break
        print(f"\n{stage.name}: {stage.what}", flush=True)
        StageRun(stage, outcomes, end - time.monotonic()).run()
        ran.append(stage.name)
    print(summary(outcomes, ran))
    came = [outcomes.outcome(name) for name in ran]
    return 1 if FAILED in came or (came and set(came) == {NOT_RUN}) else 0


if __name__ == "__main__":
    sys.exit(main())
