"""perf/gpu.py as a whole, small sizes, on GPUs and an NCCL that are none and that the loader finds (nccl/).
Usage: gpu_on_fakes.py GPU_PY BIN check|bench"""
import pathlib
import subprocess
import sys
import tempfile

GPU_PY, BIN, COMMAND = sys.argv[1:]


def run(*words):
    done = subprocess.run([sys.executable, "-B", GPU_PY, *words, "--bin", BIN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    return done


def fail(why):
    sys.exit(f"gpu_on_fakes: {why}")


def check():
    done = run("check", "--max", "64K")
    if done.returncode != 0 or ", 0 wrong" not in done.stdout:
        fail(f"gpu.py check ended with status {done.returncode}")


def bench():
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", "--out", folder, "--threads", "2", "3", "--processes", "2", "--max", "16K", "--time", "0.001"]
        done = run(*words)
        if done.returncode != 0:
            fail(f"gpu.py bench ended with status {done.returncode}")
        results = pathlib.Path(folder, "results.md").read_text()
        if "Not measured" in results:
            fail("something was not measured")
        for name in ["device_limit_2_loops", "device_limit_3_loops", "all_reduce_threads_3_graph", "all_gather_processes_2_launch",
                     "reduce_scatter_nccl_2_graph"]:
            if not pathlib.Path(folder, "raw", f"{name}.json").exists():
                fail(f"there are no results of {name}")
        again = run(*words, "--resume")
        if again.returncode != 0 or ": done after" in again.stdout:
            fail("--resume has measured again")


{"check": check, "bench": bench}[COMMAND]()
