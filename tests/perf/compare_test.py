"""perf/compare/compare.py without running any benchmark: what is asked for, what is predicted, what the tables say.
Usage: compare_test.py FOLDER (perf/compare)"""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, sys.argv.pop(1))
import compare  # noqa: E402
import compare_goals  # noqa: E402
import compare_hosts  # noqa: E402
import compare_measure  # noqa: E402
import compare_memory  # noqa: E402
import compare_overlap  # noqa: E402
import compare_tables  # noqa: E402
import compare_torch  # noqa: E402
import compare_training  # noqa: E402
import torch_compare  # noqa: E402
import torch_reference  # noqa: E402

MIB = 1 << 20


class Arguments(unittest.TestCase):
    def test_sections(self):
        self.assertEqual(compare.parse_arguments([]).sections, compare.SECTIONS)
        self.assertEqual(compare.parse_arguments(["--quick"]).sections, ["all_reduce"])
        self.assertEqual(compare.parse_arguments(["training"]).sections, list(compare.TRAINING))
        self.assertEqual(compare.parse_arguments(["training_memory"]).sections, ["training_memory"])
        both = compare.parse_arguments(["--only", "plan_walk,all_reduce"])
        self.assertEqual(both.sections, ["all_reduce", "plan_walk"])
        self.assertEqual(both.tables, ["all_reduce"])

    def test_mpich_with_more_ranks_than_cores_stays_small(self):
        arguments = compare.parse_arguments([])
        oversubscribed = compare_measure.Section(arguments, "all_reduce", 10_000)
        self.assertEqual(oversubscribed.sizes("mpich")[3], str(MIB))
        self.assertEqual(oversubscribed.sizes("openmpi")[3], "64M")
        self.assertEqual(compare_measure.Section(arguments, "all_reduce", 1).sizes("mpich")[3], "64M")

    def test_machine_folder(self):
        machine = {"processor": "Some(R) Chip(TM) CPU X-1 @ 2.00GHz", "cores": 2, "date": "2001-02-03 04:05",
                   "commit": "abc"}
        self.assertEqual(str(compare.folder_name(machine)), "some-chip-x-1-2-cores/2001-02-03-abc")


    def test_a_machine_without_git(self):
        environment = {"PATH": "/nowhere", "TUTTI_COMMIT": "abc"}
        with unittest.mock.patch.dict(compare.os.environ, environment, clear=True):
            self.assertEqual(compare.commit(), "abc")
            del compare.os.environ["TUTTI_COMMIT"]
            self.assertEqual(compare.commit(), "unknown")


class Hosts(unittest.TestCase):
    @staticmethod
    def found(tutti, rate="1gbit", size=MIB):
        row = {"hosts": 2, "each": 1, "rate": rate, "collective": "all_reduce", "size": size, "algorithm": "ring",
               "congestion": "cubic"}
        times = {compare_hosts.TUTTI: tutti, "openmpi": 1000.0, "gloo": 400.0, "tcp": 100.0}
        return [{**row, "variant": name, "times": [time]} for name, time in times.items()]

    def test_bytes_of_a_host(self):
        self.assertEqual(compare_hosts.host_bytes("all_reduce", 2, 2), 1)
        self.assertEqual(compare_hosts.host_bytes("all_reduce", 4, 1), 1.5)
        self.assertEqual(compare_hosts.host_bytes("all_gather", 4, 1), 0.75)
        self.assertEqual(compare_hosts.host_bytes("alltoall", 2, 2), 1)
        self.assertEqual(compare_hosts.host_bytes("alltoall", 2, 1), 0.5)

    def test_goals_by_the_link_and_by_the_best_peer(self):
        limit, behind = compare_hosts.goals(self.found(102.0))
        self.assertEqual((limit["met"], behind["met"]), (True, True))
        self.assertIn("all_reduce 0.98 at 1 MiB", limit["measured"])
        self.assertIn("all_reduce 3.92 at 1 MiB", behind["measured"])
        limit, behind = compare_hosts.goals(self.found(500.0))
        self.assertEqual((limit["met"], behind["met"]), (False, False))
        large, = compare_hosts.goals(self.found(310.0, rate=None))
        self.assertEqual((large["met"], "all_reduce 1.29" in large["measured"]), (False, True))
        small, = compare_hosts.goals(self.found(390.0, rate=None, size=8))
        self.assertTrue(small["met"])

    def small(self, mine, theirs):
        rows = self.found(0, rate=None, size=8)
        for row in rows:
            row["times"] = {compare_hosts.TUTTI: mine, "openmpi": theirs}.get(row["variant"], [1e6] * len(mine))
        goal, = compare_hosts.goals(rows)
        return goal

    def test_who_loses_some_rounds_is_not_behind(self):
        lost_six = self.small([9.0] * 6 + [7.0] * 3, [8.0] * 9)
        self.assertTrue(lost_six["met"])
        self.assertIn("all_reduce 0.89 at 8 B (a tie: slower in 6 of 9 rounds)", lost_six["measured"])
        self.assertFalse(self.small([9.0] * 8 + [7.0], [8.0] * 9)["met"])
        self.assertFalse(self.small([9.0, 9.0, 7.0], [8.0] * 3)["met"], "three rounds tell nothing but the median")

    def test_who_is_at_the_links_limit_is_not_behind(self):
        for mine, met in ((100.5, True), (102.0, False)):
            rows = self.found(mine)
            rows[1]["times"] = [100.0]
            self.assertEqual(compare_hosts.goals(rows)[1]["met"], met)

    def test_table(self):
        text = "\n".join(compare_hosts.table(self.found(200.0)))
        self.assertIn("| 1 MiB | 200.0 | 1000.0 | 400.0 | 100.0 | 2.00 | ring |", text)


class Predictions(unittest.TestCase):
    def test_two_shot_takes_as_long_as_a_copy(self):
        medians = {(2, "all_reduce", "tutti registered", MIB): 110.0, (2, "copy", "limit", MIB): 100.0}
        row, = compare_goals.predictions(medians, None)
        self.assertEqual((row["predicted_us"], row["measured_us"]), (100.0, 110.0))
        self.assertIn("21.0 GB/s", row["how"])  # 2 MiB in 100 us

    def test_one_shot_adds_to_the_exchange_by_hand(self):
        medians = {(2, "all_reduce", "tutti registered", 8): 0.35}
        row, = compare_goals.predictions(medians, {"results": [{"key": "hand_8", "ns": 150.0}]})
        self.assertAlmostEqual(row["predicted_us"], 0.25)
        self.assertEqual(compare_goals.predictions(medians, None), [])


class Tables(unittest.TestCase):
    def test_price_of_determinism(self):
        collection = compare_measure.Collection()
        medians = {}
        for size in (8, MIB):
            medians[(2, "deterministic", "tutti registered", size)] = 2.0
            medians[(2, "deterministic", "tutti deterministic", size)] = 3.0
        text = "\n".join(compare_tables.deterministic_table(2, collection, medians))
        self.assertIn("| 1 MiB | 2.00 | 3.00 | 1.50 |", text)
        self.assertIn("geometric mean over sizes: 1.50", text)

    def test_everything_that_lacks_is_named(self):
        arguments = compare.parse_arguments(["training", "--bin", "/no/such/folder"])
        collection = compare_measure.Collection()
        for part in compare.TRAINING.values():
            part.measure(arguments, collection, lambda text: None)
        machine = {"processor": "p", "cores": 2, "system": "s", "date": "d", "commit": "c", "load_before": 0}
        text = compare_tables.write_table(machine, arguments, collection, {}, [])
        self.assertIn("- training_steps: train_gpt was not built", text)
        self.assertIn("- training_overlap: overlap_bench was not built", text)
        self.assertIn("- training_memory: memory_bench was not built", text)


def training_row(variant, rounds, size="compute-bound", loss=2.0, **more):
    return {"size": size, "options": "", "variant": variant, "ranks": 2, "communication_share": 0.25, "loss": loss,
            "step_ms": sorted(rounds)[len(rounds) // 2], "rounds": rounds, "sent_bytes": 0, **more}


class Training(unittest.TestCase):
    def test_the_warm_up_does_not_count(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "steps.csv"
            steps = ["900,0.9,3,8"] * compare_training.WARM_UP_STEPS + ["10,0.1,3,8", "12,0.2,2,8", "30,0.3,1.5,8"]
            path.write_text("\n".join(["step_ms,communication_share,loss,bytes_sent", *steps]) + "\n")
            self.assertEqual(compare_training.read_steps(path),
                             {"step_ms": 12.0, "communication_share": 0.2, "loss": 1.5, "sent_bytes": 8})
            path.write_text("step_ms,communication_share,loss,bytes_sent\n1,0.1,1,8\n")
            self.assertRaises(ValueError, compare_training.read_steps, path)

    def test_the_reference_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "steps.jsonl"
            summary = {"step_ms": 5.0, "communication_share": None, "sent_bytes": 8, "ranks": 2}
            lines = [{"step": 0, "loss": 3.0, "step_ms": 6}, {"step": 1, "loss": 2.5, "step_ms": 5},
                     {"local_step": 0, "step_ms": 1}, {"summary": summary}]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            found = compare_training.read_reference(path)
            self.assertEqual((found["loss"], found["step_ms"], found["sent_bytes"]), (2.5, 5.0, 8))

    def test_ratios_are_of_the_same_round(self):
        rows = [training_row("Tutti DDP", [1.0, 10.0, 2.0]), training_row("PyTorch DDP", [1.5, 15.0, 3.0])]
        self.assertEqual(compare_training.ratio(rows, "compute-bound", 2, "Tutti DDP", "PyTorch DDP"), 1.5)
        self.assertIsNone(compare_training.ratio(rows, "compute-bound", 4, "Tutti DDP", "PyTorch DDP"))
        goal, = compare_training.goals(rows)
        self.assertTrue(goal["met"])
        rows = [training_row("Tutti DDP", [1.0], "communication-bound"),
                training_row("PyTorch DDP", [1.29], "communication-bound")]
        self.assertFalse(compare_training.goals(rows)[0]["met"])

    def test_table(self):
        rows = [training_row("Tutti DDP", [2.0]), training_row("PyTorch DDP", [5.0], sent_bytes=3_000_000)]
        text = "\n".join(compare_training.table(rows))
        self.assertIn("| compute-bound | PyTorch DDP | 5.00 | 5.0 to 5.0 | 25.0 % | 3.00 | 2.50 |", text)
        self.assertIn("| compute-bound | Tutti DDP | 2.00 | 2.0 to 2.0 | 25.0 % | - | 1.00 |", text)
        self.assertNotIn("differ", text)
        rows.append(training_row("Gloo DDP", [3.0], loss=2.1))
        self.assertIn("**they differ, so this compares nothing**", "\n".join(compare_training.table(rows)))

    def test_overlap(self):
        rows = [{"strategy": "ddp", "mib": mib, "pieces": 3, "bytes_per_second": 1e8, "compute_ms": 99.0,
                 "communication_ms": 80.0,
                 "step_ms": 100 * ratio, "blocking_ms": 180.0, "ratio": ratio} for mib, ratio in ((1, 1.1), (25, 1.8))]
        report = {"ranks": 2, "layers": 8, "width": 256, "parameter_bytes": 1e6, "rows": 8, "context": 64, "rounds": 3,
                  "steps": 5, "compute_ms": 100.0, "forward_ms": 30.0, "backward_ms": 70.0, "results": rows}
        goal, = compare_overlap.goals(report)
        self.assertEqual((goal["measured"], goal["met"]), ("1.10 with buckets of 1 MiB", True))
        self.assertIn("| ddp | 25 | 3 | 100 | 99.0 | 80.0 | 180.0 | 180.0 | 1.80 |", compare_overlap.table(report))

    def test_memory_is_the_formula_to_the_byte_or_padding(self):
        row = {"strategy": "zero3", "ranks": 3, "parameters": 4, "gradients": 4, "optimiser": 8, "measured": 18,
               "formula": 16.0, "measured_sum": 52, "padding_sum": 2, "peak_gathered": 0}
        report = {"parameters": 3, "results": [row]}
        self.assertTrue(compare_memory.goals(report)[0]["met"])
        self.assertFalse(compare_memory.goals({"results": [{**row, "measured_sum": 53}]})[0]["met"])
        self.assertFalse(compare_memory.goals({"results": [{**row, "measured_sum": 47}]})[0]["met"])
        self.assertIn("| zero3 | 16/n | 3 | 4 | 4 | 8 | 18 | 16 | 1.1250 | 4 | 2 | 0 |", compare_memory.table(report))


def torch_calls(tutti_us, gloo_us, collective="all_reduce", size=8):
    rows = [{"collective": collective, "size": size, "backend": backend, "time_us": sorted(times)[len(times) // 2],
             "rounds_us": times} for backend, times in (("tutti", tutti_us), ("gloo", gloo_us))]
    return {"ranks": 2, "results": rows, "missing": {"mpi": "this torch was built without MPI"},
            "cost_us": {"dist.all_reduce": 7.0, "backend": 2.0, "no backend": 4.0}}


def torch_found(report, tutti_ms=1.0, gloo_ms=1.6, cpp_us=0.5):
    steps = [{"ranks": 2, "parallel": "ddp", "backend": backend, "loss": 2.0, "step_ms": ms, "rounds": [ms]}
             for backend, ms in (("tutti", tutti_ms), ("gloo", gloo_ms))]
    return {"calls": [report], "cpp_us": {"2": cpp_us}, "steps": steps}


class Torch(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self):
        self.assertEqual(compare_torch.call_ratios(torch_calls([1.0, 10.0, 2.0], [12.0, 120.0, 24.0]), "all_reduce"), {8: 12})
        self.assertEqual(compare_torch.call_ratios(torch_calls([1.0], [1.0]), "broadcast"), {})

    def test_goals(self):
        first, cost, step = compare_torch.goals(torch_found(torch_calls([1.0], [10.0])))
        self.assertEqual((first["met"], cost["met"], step["met"]), (True, False, True))
        self.assertEqual(cost["measured"], "6.50 us")
        rows = compare_torch.goals(torch_found(torch_calls([1.0], [9.9]), gloo_ms=1.4, cpp_us=1.5))
        self.assertEqual({row["goal"].split(":")[0]: row["met"] for row in rows}, {
            "torch, all_reduce, 2 ranks, to 4 KiB": False, "torch, 2 ranks": True,
            "torch, a step of DDP, 2 ranks, communication-bound": False})
        large = compare_torch.goals(torch_found(torch_calls([1.0], [4.0], size=1 << 20)))
        self.assertTrue(next(row for row in large if "from 64 KiB" in row["goal"])["met"])
        slow = compare_torch.goals(torch_found(torch_calls([1.0], [2.9], "broadcast")))
        self.assertFalse(next(row for row in slow if "broadcast" in row["goal"])["met"])

    def test_table(self):
        text = "\n".join(compare_torch.table(torch_found(torch_calls([2.0], [30.0]))))
        self.assertIn("| 8 B | 2.0 | 30.0 | 15.00 |", text)
        self.assertIn("| 2 | 0.50 | 2.00 | 7.00 | 6.50 | 4.00 |", text)
        self.assertIn("| 2 | DDP | tutti | 1.00 | 1.0 to 1.0 | 2.0000 | 1.60 |", text)
        self.assertIn("- mpi: this torch was built without MPI", text)

    def test_what_is_missing_is_said(self):
        real = compare_torch.compare_training.python_with_torch
        compare_torch.compare_training.python_with_torch = lambda: None
        try:
            collection = compare_measure.Collection()
            compare_torch.measure(compare.parse_arguments(["torch"]), collection, lambda text: None)
        finally:
            compare_torch.compare_training.python_with_torch = real
        self.assertIn("no Python with torch", collection.missing["torch"])

    def test_wrong_usage_is_refused(self):
        for words in (["--only", "no_such"], ["--ranks", "0"], ["--factor", "1"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                torch_compare.parse_arguments(words)

    def test_sizes(self):
        self.assertEqual(torch_compare.sizes_of(torch_compare.parse_arguments(["--max", "1K", "--factor", "8"])), [8, 64, 512])


class Reference(unittest.TestCase):
    def test_rows_are_those_of_train_gpt(self):
        # SplitMix64 of seed 0: the first outputs of its reference implementation.
        self.assertEqual(torch_reference.mix64(0), 0xE220A8397B1DCDAF)
        self.assertEqual(torch_reference.mix64(0x9E3779B97F4A7C15), 0x6E789E6AA1B965F4)
        self.assertLess(torch_reference.row_offset(1337, 5, 3, 1000, 64), 936)

    def test_sent_bytes(self):
        sizes = [("token.weight", 100), ("blocks.0.mlp.weight", 300)]
        self.assertEqual(torch_reference.sent_bytes("ddp", sizes, 2), 400)
        self.assertEqual(torch_reference.sent_bytes("fsdp2", sizes, 2), 550)  # the root's 100 once less
        self.assertEqual(torch_reference.sent_bytes("fsdp2", sizes, 1), 0)

    def test_wrong_usage_is_refused(self):
        for words in (["--width", "100", "--heads", "8"], ["--ranks", "0"], ["--parallel", "none"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                torch_reference.parse_arguments(words)


class Failures(unittest.TestCase):
    def test_the_programs_own_words(self):
        done = subprocess.CompletedProcess([], 5, stdout="", stderr="a launcher\nx_perf: no such thing\nmore\n-----\n")
        self.assertEqual(compare_measure.describe_failure(done, "x_perf"), "exit status 5: x_perf: no such thing")
        self.assertEqual(compare_measure.describe_failure(done, "y_perf"), "exit status 5: more")


class Patience(unittest.TestCase):
    def test_a_slow_variant_gets_no_more_rounds(self):
        arguments = compare.parse_arguments(["--patience", "-1", "--variants", "gloo", "--rounds", "3"])
        collection = compare_measure.Collection()
        ran = []
        real = compare_measure.run_program
        compare_measure.run_program = lambda command, path: ran.append(command) or {"results": []}
        try:
            compare_measure.Section(arguments, "all_gather", 2).measure(collection, lambda text: None)
        finally:
            compare_measure.run_program = real
        self.assertEqual(len(ran), 2)  # gloo and the limit, once each
        self.assertEqual(sum("1 of 3 rounds" in note for note in collection.notes), 2)


if __name__ == "__main__":
    unittest.main()
