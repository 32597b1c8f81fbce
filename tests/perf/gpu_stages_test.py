"""scripts/gpu_stages.py and tests/nccl/nccl_tests.py without a GPU: what runs, what is kept of it, and what counts as good.
Usage: gpu_stages_test.py SOURCE_FOLDER"""
import contextlib
import io
import pathlib
import sys
import tempfile
import time
import unittest
import unittest.mock

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.path[:0] = [str(SOURCE / "scripts"), str(SOURCE / "tests" / "nccl")]
import gpu_stages as stages  # noqa: E402
import nccl_tests  # noqa: E402

TABLE = """# nccl-tests version 2.19.6
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
           8             2     float     sum      -1    12.34    0.00    0.00       0    11.00    0.00    0.00       {}
     1048576        262144     float     sum      -1  1.2e+05    0.01    0.01       0    99.00   10.59   10.59     N/A
# Out of bounds values : 0 OK
"""


def command(text):
    return stages.Command(["sh", "-c", text])


def is_running(pid):
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def run_stage(self, *commands, preparations=(), seconds=60, **options):
        stage = stages.Stage("test", "a test", list(preparations), list(commands), **options)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            outcome = stages.run_stage(stage, self.out, seconds)
        return outcome, said.getvalue()

    def test_a_preparation_that_fails_ends_a_stage(self):
        file = self.out / "ran"
        outcome, said = self.run_stage(command(f"touch {file}"), preparations=[command("echo first"), command("echo why; exit 3")])
        self.assertFalse(file.exists())
        self.assertEqual(outcome["outcome"], "FAILED")
        self.assertEqual(outcome["failures"], ["it ended with status 3: sh -c 'echo why; exit 3'"])
        self.assertIn("    | why", said)
        self.assertIn("first", (self.out / "logs" / "test.log").read_text())

    def test_another_command_does_not(self):
        file = self.out / "ran"
        outcome, _ = self.run_stage(command("exit 3"), command(f"touch {file}"))
        self.assertEqual(outcome["outcome"], "FAILED")
        self.assertTrue(file.exists())

    def test_time_is_over_for_all_that_a_command_has_started(self):
        file = self.out / "pid"
        outcome, _ = self.run_stage(command(f"sleep 1000 & echo $! > {file}; wait"), command("true"), seconds=3)
        self.assertEqual(outcome["failures"], [f"it did not end within 3 s: sh -c 'sleep 1000 & echo $! > {file}; wait'"])
        pid = file.read_text().strip()
        end = time.monotonic() + 30  # whoever was killed ends when it gets a core
        while is_running(pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(is_running(pid))

    def test_one_command_that_hangs_leaves_time_to_the_others(self):
        file = self.out / "ran"
        outcome, _ = self.run_stage(stages.Command(["sleep", "1000"], limit=1), command(f"touch {file}"))
        self.assertEqual(outcome["failures"], ["it did not end within 1 s: sleep 1000"])
        self.assertTrue(file.exists())

    def test_no_run_under_the_sanitizer_may_take_the_others_time(self):
        with contextlib.redirect_stdout(io.StringIO()):
            stage = stages.sanitize_stage(stages.parse_arguments(["--out", str(self.out)]))
        kinds = set()
        for each in stage.commands:
            self.assertLessEqual(each.limit, 60)
            self.assertLess(int(each.words[each.words.index("-T") + 1]), each.limit)
            self.assertEqual(each.words[each.words.index("--target-processes") + 1], "all")
            kinds |= {"threads"} if "-t" in each.words else {"processes"}
        self.assertEqual(kinds, {"threads", "processes"})

    def test_device_tests_run_on_the_machines_driver(self):
        with contextlib.redirect_stdout(io.StringIO()):
            stage = stages.device_stage(stages.parse_arguments(["--out", str(self.out)]))
        self.assertTrue(stage.commands)
        for each in stage.commands:
            self.assertEqual(each.environment, {"TUTTI_TEST_DRIVER": "machine"})
            self.assertLess(each.limit, stages.LIMIT / 3)
            name = each.words[1].removeprefix("--file=")
            self.assertIn("TestGpus", (SOURCE / "tests" / "device" / f"{name}_test.cc").read_text())

    def test_benches_have_all_numbers_of_ranks(self):
        threads, processes = [], []
        with contextlib.redirect_stdout(io.StringIO()):
            options = stages.parse_arguments(["--out", str(self.out)])
        for make in (stages.bench_stage, stages.bench_ranks_stage):
            words = make(options).commands[0].words
            given = stages.benchmarks.parse_arguments(words[words.index("perf/gpu.py") + 1:])
            self.assertEqual((given.command, given.resume), ("bench", True))
            self.assertLess(given.budget, stages.LIMIT)
            threads += given.threads
            processes += given.processes
        self.assertEqual((sorted(threads), sorted(processes)), ([*range(1, 9)], [*range(2, 9)]))

    def test_what_is_needed_is_said(self):
        outcome, said = self.run_stage(command("exit 3"), needs=[lambda: None, lambda: "there is no moon"])
        self.assertEqual((outcome["outcome"], outcome["failures"]), ("not run", ["there is no moon"]))
        self.assertIn("not run: there is no moon", said)

    def test_a_program_that_is_not_there(self):
        outcome, _ = self.run_stage(stages.Command(["/nowhere/at/all"]))
        self.assertEqual(outcome["failures"], ["/nowhere/at/all cannot be started: No such file or directory: /nowhere/at/all"])

    def test_outcomes_outlast_a_run(self):
        stages.Outcomes(self.out).keep("build", {"outcome": stages.PASSED, "seconds": 7, "failures": []})
        outcomes = stages.Outcomes(self.out)
        outcomes.keep("bench", {"outcome": "FAILED", "seconds": 9, "failures": ["a | b"]})
        self.assertTrue(outcomes.passed("build"))
        self.assertFalse(outcomes.passed("bench"))
        text = (self.out / "stages.md").read_text()
        self.assertIn("| build | passed | 7 |  |", text)
        self.assertIn("| bench | FAILED | 9 | a \\| b |", text)
        self.assertIn("| torch | not run | 0 | nobody has asked for it yet |", text)

    def main(self, *words):
        with unittest.mock.patch.object(sys, "argv", ["gpu_stages.py", *words, "--out", str(self.out)]):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                status = stages.main()
        return status, said.getvalue()

    def test_what_has_passed_runs_again_only_when_named(self):
        made = {name: (lambda name: lambda options: stages.Stage(name, name, [], [command(f"echo x >> {self.out / name}")]))(name)
                for name in ("one", "two")}
        with unittest.mock.patch.dict(stages.STAGES, made, clear=True):
            self.assertEqual(self.main("one")[0], 0)
            self.assertEqual(self.main()[0], 0)
            self.assertEqual([len((self.out / name).read_text().split()) for name in made], [1, 1])
            self.assertEqual(self.main("one")[0], 0)
            self.assertEqual(len((self.out / "one").read_text().split()), 2)

    def test_no_stage_begins_when_the_time_is_over(self):
        made = {"one": lambda options: stages.Stage("one", "one", [], [command("exit 3")])}
        with unittest.mock.patch.dict(stages.STAGES, made, clear=True):
            status, said = self.main("one", "--budget", "0.001")
        self.assertEqual(status, 1)
        self.assertIn("one: not begun, the time is over", said)

    def test_every_command_of_ours_exists(self):
        with contextlib.redirect_stdout(io.StringIO()):
            options = stages.parse_arguments(["--out", str(self.out)])
        for make in stages.STAGES.values():
            for each in [*make(options).preparations, *make(options).commands]:
                for word in each.words:
                    if word.endswith((".py", ".c")) and not word.startswith("build"):
                        self.assertTrue((SOURCE / word).exists(), word)


class NcclTests(unittest.TestCase):
    def test_a_good_table(self):
        self.assertEqual(nccl_tests.wrong_columns(TABLE.format(0)), ["0", "0", "0", "N/A"])
        self.assertIsNone(nccl_tests.why_bad(0, TABLE.format(0)))

    def test_bad_ones(self):
        self.assertEqual(nccl_tests.why_bad(0, TABLE.format(17)), "1 of 4 results have wrong elements")
        self.assertEqual(nccl_tests.why_bad(3, TABLE.format(0)), "ended with status 3")
        self.assertEqual(nccl_tests.why_bad(0, "# Invalid number of GPUs\n"), "printed no row of results")
        self.assertEqual(nccl_tests.why_bad(0, TABLE.format(0).replace("       0 ", "     N/A ").replace("       0\n", "     N/A\n")),
                         "compared nothing")


unittest.main()
