"""perf/compare.py without running any benchmark: what is asked for, what is predicted, what the tables say.
Usage: compare_test.py PERF_FOLDER"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv.pop(1))
import compare  # noqa: E402
import compare_goals  # noqa: E402
import compare_measure  # noqa: E402
import compare_tables  # noqa: E402
import compare_training  # noqa: E402

MIB = 1 << 20


class Arguments(unittest.TestCase):
    def test_sections(self):
        self.assertEqual(compare.parse_arguments([]).sections, compare.SECTIONS)
        self.assertEqual(compare.parse_arguments(["--quick"]).sections, ["all_reduce"])
        self.assertEqual(compare.parse_arguments(["training"]).sections, ["training"])
        both = compare.parse_arguments(["--only", "training,all_reduce"])
        self.assertEqual(both.sections, ["all_reduce", "training"])
        self.assertEqual(both.tables, ["all_reduce"])

    def test_mpich_with_more_ranks_than_cores_stays_small(self):
        arguments = compare.parse_arguments([])
        crowded = compare_measure.Section(arguments, "all_reduce", 10_000)
        self.assertEqual(crowded.sizes("mpich")[3], str(MIB))
        self.assertEqual(crowded.sizes("openmpi")[3], "64M")
        self.assertEqual(compare_measure.Section(arguments, "all_reduce", 1).sizes("mpich")[3], "64M")

    def test_machine_folder(self):
        machine = {"processor": "Some(R) Chip(TM) CPU X-1 @ 2.00GHz", "cores": 2, "date": "2001-02-03 04:05",
                   "commit": "abc"}
        self.assertEqual(str(compare.folder_name(machine)), "some-chip-x-1-2-cores/2001-02-03-abc")


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

    def test_training(self):
        rows = [{"size": "s", "options": "", "backend": backend, "step_ms": step, "communication_share": 0.25}
                for backend, step in (("tutti", 2.0), ("gloo", 5.0))]
        self.assertIn("| s | gloo | 5.00 | 25.0 % | 2.50 |", compare_tables.training_table(rows))

    def test_everything_that_lacks_is_named(self):
        arguments = compare.parse_arguments(["training", "--bin", "/no/such/folder"])
        collection = compare_measure.Collection()
        compare.compare_training.measure(arguments, collection, lambda text: None)
        machine = {"processor": "p", "cores": 2, "system": "s", "date": "d", "commit": "c", "load_before": 0}
        text = compare_tables.write_table(machine, arguments, collection, {}, [])
        self.assertIn("- training: train_gpt was not built", text)


class Training(unittest.TestCase):
    def test_the_warm_up_does_not_count(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "steps.csv"
            steps = ["900,0.9"] * compare_training.WARM_UP_STEPS + ["10,0.1", "12,0.2", "30,0.3"]
            path.write_text("\n".join(["step_ms,communication_share", *steps]) + "\n")
            self.assertEqual(compare_training.read_steps(path), (12.0, 0.2))
            path.write_text("step_ms,communication_share\n1,0.1\n")
            self.assertRaises(ValueError, compare_training.read_steps, path)


class Failures(unittest.TestCase):
    def test_the_programs_own_words(self):
        done = subprocess.CompletedProcess([], 5, stdout="", stderr="a launcher\nx_perf: no such thing\nmore\n-----\n")
        self.assertEqual(compare_measure.describe_failure(done, "x_perf"), "exit status 5: x_perf: no such thing")
        self.assertEqual(compare_measure.describe_failure(done, "y_perf"), "exit status 5: more")


class Patience(unittest.TestCase):
    def test_a_slow_contender_gets_no_more_rounds(self):
        arguments = compare.parse_arguments(["--patience", "-1", "--contenders", "gloo", "--rounds", "3"])
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
