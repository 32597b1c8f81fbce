"""perf/gpu.py and its tables without a GPU: which runs are made, what they make of results.
Usage: gpu_test.py PERF_FOLDER"""
import contextlib
import io
import pathlib
import stat
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, sys.argv.pop(1))
import gpu  # noqa: E402
import gpu_tables  # noqa: E402

MIB = 1 << 20
# Stands for every program: writes results as theirs, or fails where it is told to.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
words = sys.argv[1:]
name = pathlib.Path(sys.argv[0]).name
if name == "tutti":
    print(json.dumps({"gpus": {"available": True, "gpus": [{"name": "NVIDIA H200"}]}}))
    sys.exit()
if "FAIL" in name:
    print(name + ": rank 1 died", file=sys.stderr)
    sys.exit(3)
if "-J" in words:
    ranks = int(words[words.index("--ranks") + 1]) if "--ranks" in words else int(words[words.index("-t") + 1])
    row = {"size": 16 << 20}
    if name == "roofline_device":
        loops = {"all_reduce": 99.0, "all_gather": 77.0}
        rows = [{"size": size, "copy_us": size / 1e6, "gb_per_s": 2000.0, "loop_us": loops} for size in (16 << 20, 32 << 20, 64 << 20)]
    else:
        rows = [{"size": size, "out_of_place": {"time": 5.0 + size * ranks / 0.9e6}} for size in (8, 16 << 20)]
    pathlib.Path(words[words.index("-J") + 1]).write_text(json.dumps({"results": rows}))
"""


def programs(folder, *broken):
    for name in ["tutti", "roofline_device", *[f"{program}_perf" for program in gpu.PROGRAMS]]:
        path = pathlib.Path(folder, name)
        path.write_text(PROGRAM.replace('"FAIL" in name', f"name in {broken!r}"))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Runs(unittest.TestCase):
    def test_checks_look_at_everything(self):
        runs = gpu.checks()
        first = [program for _, program, _ in runs[:len(gpu.PROGRAMS)]]
        self.assertEqual(first, gpu.PROGRAMS)  # all of them soon, should the time be over
        for program in gpu.PROGRAMS:
            mine = [options for _, at, options in runs if at == program]
            self.assertTrue(any("--ranks" in options for options in mine))
            self.assertTrue(any("-G" in options for options in mine))
            for options in mine:
                self.assertEqual(options[options.index("--memory") + 1], "device")
                self.assertNotEqual(options[options.index("-c") + 1], "0")

    def test_a_wrong_result_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder, "gather_perf")
            arguments = gpu.parse_arguments(["check", "--bin", folder])
            with contextlib.redirect_stdout(io.StringIO()) as said:
                failed = gpu.check(arguments)
            expected = sum(program == "gather" for _, program, _ in gpu.checks())
            self.assertEqual(failed, expected)
            self.assertIn("WRONG gather graph: exit status 3: gather_perf: rank 1 died", said.getvalue())

    def test_bench_writes_tables_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder, "all_gather_perf")
            out = pathlib.Path(folder, "out")
            arguments = gpu.parse_arguments(["bench", "--bin", folder, "--out", str(out), "--threads", "2", "--processes", "2",
                                             "--nccl", folder])
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(gpu.bench(arguments), 1)  # one has failed
            text = (out / "results.md").read_text()
            self.assertIn("1 GPU(s): NVIDIA H200", text)
            self.assertIn("| 16 MiB |", text)
            self.assertIn("2 threads, graph", text)
            self.assertIn("- all_gather_threads_2_graph: exit status 3: all_gather_perf: rank 1 died", text)
            self.assertTrue((out / "raw" / "all_reduce_processes_2_launch.json").exists())
            self.assertIn("- nccl: there is no NCCL in", text)

    def bench(self, folder, out, *words):
        arguments = gpu.parse_arguments(["bench", "--bin", folder, "--out", str(out), "--nccl", folder, *words])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            return gpu.bench(arguments), said.getvalue()

    def test_sizes_and_ranks_are_the_goals(self):
        arguments = gpu.parse_arguments(["bench"])
        runs = gpu.benches(arguments, 1)
        for _, _, options in runs:
            first, last, factor = (options[options.index(name) + 1] for name in ("-b", "-e", "-f"))
            self.assertEqual((first, last, factor), ("8", "1G", "2"))  # which hit 64 KiB, 16 MiB and 1 GiB
        keys = {key for key, _, _ in runs}
        for collective in gpu.MEASURED:
            self.assertLessEqual({(collective, "threads", ranks, how) for ranks in range(1, 9) for how in ("graph", "launch")}, keys)
            self.assertLessEqual({(collective, "processes", ranks, "launch") for ranks in range(2, 9)}, keys)
        self.assertNotIn(("all_reduce", "processes", 2, "graph"), keys)
        self.assertIn(("all_reduce", "processes", 2, "graph"), {key for key, _, _ in gpu.benches(arguments, 2)})
        self.assertTrue(all(key[1] == "threads" and key[2] in (2, 4) for key, _, _ in runs[:12]))

    def test_results_are_drawn_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder)
            out = pathlib.Path(folder, "out")
            self.assertEqual(self.bench(folder, out, "--threads", "2", "--processes")[0], 0)
            text = (out / "results.md").read_text()
            self.assertIn("host loop, 2 ranks", text)
            self.assertIn("| 77.00 |", text)
            (out / "results.md").unlink()
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(gpu.draw(gpu.parse_arguments(["draw", "--out", str(out)])), 0)
            self.assertEqual((out / "results.md").read_text(), text)

    def test_results_of_another_machine_are_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder)
            out = pathlib.Path(folder, "out")
            self.assertEqual(self.bench(folder, out, "--threads", "2", "--processes")[0], 0)
            text = (out / "bench.json").read_text()
            (out / "bench.json").write_text(text.replace("NVIDIA H200", "NVIDIA A100"))
            status, said = self.bench(folder, out, "--threads", "2", "--processes", "--resume")
            self.assertEqual(status, 1)
            self.assertIn("another machine or commit: GPUs ['NVIDIA A100'], here ['NVIDIA H200']", said)

    def test_what_was_measured_is_not_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder, "all_gather_perf")
            out = pathlib.Path(folder, "out")
            words = ["bench", "--bin", folder, "--out", str(out), "--threads", "2", "--processes", "--nccl", folder, "--resume"]
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(gpu.bench(gpu.parse_arguments(words)), 1)
            programs(folder, "all_reduce_perf", "reduce_scatter_perf", "roofline_device")
            (out / "raw" / "reduce_scatter_threads_2_graph.json").write_text("{")  # cut off
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(gpu.bench(gpu.parse_arguments(words)), 1)
            text = (out / "results.md").read_text()
            self.assertNotIn("- all_reduce", text[text.index("## Not measured"):])
            self.assertNotIn("- all_gather", text[text.index("## Not measured"):])
            self.assertIn("- reduce_scatter_threads_2_graph: exit status 3", text)

    def test_nccl_that_shares_a_gpu(self):
        arguments = gpu.parse_arguments(["bench", "--nccl", "/somewhere"])
        with unittest.mock.patch.object(gpu, "nccl_version", return_value=(2, 28, 9)):
            with self.assertRaisesRegex(RuntimeError, "NCCL 2.28.9 wants a GPU for each rank, and there is one; 2.30.3 or newer"):
                gpu.nccl_runs(arguments, 1)
            ranks, environment, text = gpu.nccl_runs(arguments, 4)
            self.assertEqual((ranks, text), (4, "NCCL 2.28.9"))
            self.assertNotIn("NCCL_MULTI_RANK_GPU_ENABLE", environment)
        with unittest.mock.patch.object(gpu, "nccl_version", return_value=(2, 30, 3)):
            ranks, environment, text = gpu.nccl_runs(arguments, 1)
            self.assertEqual(ranks, 2)
            self.assertEqual(environment["NCCL_MULTI_RANK_GPU_ENABLE"], "1")
            self.assertTrue(environment["LD_LIBRARY_PATH"].startswith("/somewhere"))
            self.assertIn("2.30.3, 2 ranks that share a GPU", text)

    def test_time_that_is_over(self):
        with tempfile.TemporaryDirectory() as folder:
            programs(folder)
            arguments = gpu.parse_arguments(["bench", "--bin", folder, "--out", folder + "/out", "--budget", "1e-9", "--nccl", folder])
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(gpu.bench(arguments), gpu.MORE)
            self.assertIn("was over", said.getvalue())
            self.assertIn("programs are left; --resume goes on with them", said.getvalue())


class Tables(unittest.TestCase):
    LIMITS = {2: {size: {"copy_us": size / 1e6, "gb_per_s": 2000, "loop_us": {}} for size in (16 * MIB, 32 * MIB)}}

    def test_bytes_moved(self):
        self.assertEqual(gpu_tables.moved_bytes("all_reduce", 100, 2), 400)
        self.assertEqual(gpu_tables.moved_bytes("all_gather", 100, 4), 500)

    def test_share_of_the_limit(self):
        times = {("all_reduce", "threads", 2, "launch"): {16 * MIB: {"time": 2 * 16 * MIB / 1e6 / 0.9}}}
        share = gpu_tables.share_of_limit(times, self.LIMITS, ("all_reduce", "threads", 2, "launch"), 16 * MIB)
        self.assertAlmostEqual(share, 0.9)
        self.assertIsNone(gpu_tables.limit_us(self.LIMITS, 2, "all_reduce", 64))  # no copy of about that size

    def test_what_is_larger_than_every_copy_goes_at_the_largest_ones_rate(self):
        large = {2: {256 * MIB: {"copy_us": 100.0}}}
        self.assertEqual(gpu_tables.limit_us(large, 2, "all_reduce", 1024 * MIB), 800.0)
        self.assertIsNone(gpu_tables.limit_us(self.LIMITS, 2, "all_reduce", 1024 * MIB))  # 32 MiB: too small to tell

    def test_goals(self):
        times = {("all_reduce", "threads", 2, "launch"): {8: {"time": 20.0}, 16 * MIB: {"time": 2 * 16 * MIB / 1e6 / 0.9}}}
        lines = gpu_tables.goals(times, self.LIMITS)
        self.assertIn("- NOT met: all_reduce, 2 threads, launch, up to 64 KiB: at most 15 us (20.00 to 20.00); not judged: 64 KiB", lines)
        self.assertIn("- met, as far as judged: all_reduce, 2 threads, from 16 MiB: 0.85 or more of the copy limit (0.90 to 0.90); "
                      "not judged: 1 GiB", lines)
        self.assertIn("- not measured: all_gather, 4 threads, graph, up to 64 KiB: at most 8 us", lines)


unittest.main()
