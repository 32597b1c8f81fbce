"""scripts/gpu_stages.py, gpu_run.py and tests/nccl/nccl_tests.py without a GPU: what runs, what is kept of it, and what counts as good.
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
import gpu_run as runs  # noqa: E402
import gpu_stages as stages  # noqa: E402
import nccl_tests  # noqa: E402

TABLE = """# nccl-tests version 2.19.6
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
           8             2     float     sum      -1    12.34    0.00    0.00       0    11.00    0.00    0.00       {}
     1048576        262144     float     sum      -1  1.2e+05    0.01    0.01       0    99.00   10.59   10.59     N/A
# Out of bounds values : 0 OK
"""


def command(text, **options):
    return runs.Command(["sh", "-c", text], **options)


def is_running(pid):
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def times_run(self, name):
        file = self.out / name
        return len(file.read_text().split()) if file.exists() else 0


class Runs(InAFolder):
    """One stage."""

    def run_stage(self, *commands, preparations=(), seconds=60, **options):
        """A call of ./dev gpu: what it keeps of the stage, and what it says."""
        stage = runs.Stage("test", "a test", list(preparations), list(commands), **options)
        outcomes = runs.Outcomes(self.out, ["test"])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runs.StageRun(stage, outcomes, seconds).run()
        return runs.Outcomes(self.out, ["test"]).of["test"], said.getvalue()

    def test_a_preparation_that_fails_ends_a_stage(self):
        file = self.out / "ran"
        of, said = self.run_stage(command(f"touch {file}"), preparations=[command("echo first"), command("echo why; exit 3")])
        self.assertFalse(file.exists())
        self.assertEqual(of["outcome"], "FAILED")
        self.assertEqual(of["why"], ["it ended with status 3: sh -c 'echo why; exit 3'"])
        self.assertIn("    | why", said)
        self.assertIn("first", (self.out / "logs" / "test.log").read_text())

    def test_another_command_does_not(self):
        file = self.out / "ran"
        of, _ = self.run_stage(command("exit 3"), command(f"touch {file}"))
        self.assertEqual((of["outcome"], len(of["passed"]), list(of["failed"].values())), ("FAILED", 1, ["it ended with status 3"]))
        self.assertTrue(file.exists())

    def test_what_hangs_is_ended_with_all_that_it_has_started(self):
        file = self.out / "pid"
        of, _ = self.run_stage(command(f"sleep 1000 & echo $! > {file}; wait", limit=3), command("true"))
        self.assertEqual(list(of["failed"].values()), ["it did not end within 3 s"])
        self.assertEqual(of["passed"], ["sh -c true"])
        pid = file.read_text().strip()
        end = time.monotonic() + 30  # what was killed ends when it gets a core
        while is_running(pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(is_running(pid))

    def test_each_command_is_kept_when_it_ends(self):
        table = self.out / "stages.md"
        of, _ = self.run_stage(command("true"), command(f"cp {table} {self.out / 'then.md'}"))
        self.assertEqual(of["outcome"], "passed")
        self.assertIn("| test | cut off | 1 of 2 |", (self.out / "then.md").read_text())
        self.assertIn("| test | passed | 2 of 2 |", table.read_text())

    @unittest.mock.patch.object(runs, "LEAST", 0)
    def test_it_goes_on_behind_what_has_passed(self):
        commands = [command(f"echo x >> {self.out / 'one'}"), command(f"echo x >> {self.out / 'two'}; sleep 1000", limit=1000)]
        self.assertEqual(self.run_stage(*commands, seconds=3)[0]["outcome"], "cut off")
        commands[1].words[-1] = commands[1].words[-1].replace("1000", "0")  # another text: it has never been tried
        of, _ = self.run_stage(*commands)
        self.assertEqual((of["outcome"], self.times_run("one"), self.times_run("two")), ("passed", 1, 2))

    @unittest.mock.patch.object(runs, "LEAST", 0)
    def test_what_had_less_than_its_time_is_no_failure(self):
        of, said = self.run_stage(runs.Command(["sleep", "1000"], limit=1000), seconds=2)
        self.assertEqual((of["outcome"], of["failed"]), ("cut off", {}))
        self.assertIn("cut off after 2 s: sleep 1000", said)

    def test_nothing_begins_with_hardly_any_time_left(self):
        file = self.out / "ran"
        of, said = self.run_stage(command(f"touch {file}"), seconds=runs.LEAST - 1)
        self.assertEqual(of["outcome"], "cut off")
        self.assertIn("not begun, the time is over", said)
        self.assertFalse(file.exists())

    def test_what_has_failed_is_tried_again_behind_the_rest(self):
        order = self.out / "order"
        commands = [command(f"echo one >> {order}; exit 3"), command(f"echo two >> {order}")]
        self.assertEqual(self.run_stage(*commands)[0]["outcome"], "FAILED")
        self.assertEqual(self.run_stage(*commands)[0]["outcome"], "FAILED")
        self.assertEqual(order.read_text().split(), ["one", "two", "one"])

    def test_a_command_that_has_more_to_do(self):
        more = command(f"echo x >> {self.out / 'ran'}; [ $(wc -l < {self.out / 'ran'}) = 2 ] || exit {stages.benchmarks.MORE}",
                       goes_on=True)
        self.assertEqual(self.run_stage(more)[0]["outcome"], "cut off")
        self.assertEqual(self.run_stage(more)[0]["outcome"], "passed")

    @unittest.mock.patch.object(runs, "LEAST", 0)
    def test_a_build_that_takes_too_long_is_no_failure(self):
        of, _ = self.run_stage(command("exit 3"), preparations=[command("sleep 1000", limit=1, goes_on=True)], seconds=2)
        self.assertEqual((of["outcome"], of["why"], of["failed"]), ("cut off", [], {}))

    def test_a_command_is_told_how_long_it_has(self):
        of, _ = self.run_stage(runs.Command(["sh", "-c", f"echo $0 > {self.out / 'left'}", runs.LEFT], limit=runs.REPORT + 60),
                               seconds=1000)
        self.assertEqual(of["outcome"], "passed")
        self.assertEqual((self.out / "left").read_text(), "60\n")

    def test_what_is_needed_is_said(self):
        of, said = self.run_stage(command("exit 3"), before=[lambda: None, lambda: "there is no moon"])
        self.assertEqual((of["outcome"], of["why"]), ("not run", ["there is no moon"]))
        self.assertIn("not run: there is no moon", said)

    def test_what_a_build_has_shown_is_asked_behind_it(self):
        file = self.out / "built"
        of, _ = self.run_stage(command("exit 3"), preparations=[command(f"touch {file}")],
                               needs=[lambda: f"built: {file.exists()}"])
        self.assertEqual((of["outcome"], of["why"]), ("not run", ["built: True"]))

    def test_a_program_that_is_not_there(self):
        of, _ = self.run_stage(runs.Command(["/nowhere/at/all"]))
        self.assertEqual(of["failed"], {"/nowhere/at/all": "/nowhere/at/all cannot be started: No such file or directory"})


class Calls(InAFolder):
    """Several stages."""

    def main(self, *words):
        with unittest.mock.patch.object(sys, "argv", ["gpu_stages.py", *words, "--out", str(self.out)]):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                status = stages.main()
        return status, said.getvalue()

    def made(self, **texts):
        """Stages of these names, with one shell command each that leaves a mark."""
        def make(name, text):
            return lambda options: runs.Stage(name, name, [], [command(f"echo x >> {self.out / name}; {text}")])
        return unittest.mock.patch.dict(stages.STAGES, {name: make(name, text) for name, text in texts.items()}, clear=True)

    def test_what_has_passed_runs_again_only_when_named(self):
        with self.made(one="true", two="true"):
            self.assertEqual(self.main("one")[0], 0)
            self.assertEqual(self.main()[0], 0)
            self.assertEqual([self.times_run(name) for name in ("one", "two")], [1, 1])
            self.assertEqual(self.main("one")[0], 0)
            self.assertEqual([self.times_run(name) for name in ("one", "two")], [2, 1])

    def test_what_has_passed_on_another_tree_counts_for_nothing(self):
        with self.made(one="true"):
            for tree, times in (("a", 1), ("a", 1), ("b", 2)):
                with unittest.mock.patch.object(stages, "tree_digest", lambda tree=tree: tree):
                    self.main()
                self.assertEqual(self.times_run("one"), times)

    def test_what_has_failed_holds_up_nothing(self):
        with self.made(one="exit 3", two="true", three="true"):
            status, said = self.main("one")
            self.assertEqual(status, 1)
            self.assertIn("left are two, three: ./dev gpu goes on with them", said)
            _, said = self.main()
            self.assertLess(said.index("two: two"), said.index("one: one"))
            self.assertIn("gpu: 2 of 3 stages have passed\n", said)

    def test_no_stage_begins_when_the_time_is_over(self):
        with self.made(one="exit 3"):
            status, said = self.main("--minutes", "0.01")
            self.assertEqual((status, self.times_run("one")), (0, 0))
            self.assertIn("left are one: ./dev gpu goes on with them", said)

    def test_a_call_takes_eight_minutes(self):
        self.assertEqual(self.options().minutes, 8)
        self.assertLess(runs.LIMIT, runs.SLICE)

    def test_outcomes_are_a_table(self):
        outcomes = runs.Outcomes(self.out, ["correct", "bench", "torch"])
        outcomes.stage("correct").update(outcome="passed", all=1, passed=["a"])
        outcomes.stage("bench").update(outcome="FAILED", all=1, failed={"a | b": "it ended with status 3"})
        text = outcomes.text()
        self.assertIn("| correct | passed | 1 of 1 | 0 | 0 |  |", text)
        self.assertIn("| bench | FAILED | 0 of 1 | 0 | 0 | it ended with status 3: a \\| b |", text)
        self.assertIn("| torch | not begun | | | | |", text)

    # The stages themselves.

    def options(self, *words):
        with contextlib.redirect_stdout(io.StringIO()):
            return stages.parse_arguments([*words, "--out", str(self.out)])

    def test_the_most_valuable_comes_first(self):
        self.assertEqual(list(stages.STAGES)[:4], ["correct", "sanitize", "bench", "torch"])

    def test_correct_is_what_check_does(self):
        stage = stages.correct_stage(self.options())
        self.assertEqual([each.words[1:-2] for each in stage.commands], [words[:-2] for _, _, words in stages.benchmarks.checks()])
        for each in stage.commands:
            self.assertLess(int(each.words[each.words.index("-T") + 1]), each.limit)
            self.assertIn(pathlib.Path(each.words[0]).name, stage.preparations[-1].words)  # is built

    def test_no_run_under_the_sanitizer_may_take_the_others_time(self):
        kinds = set()
        for make in (stages.sanitize_stage, stages.sanitize_more_stage):
            stage = make(self.options())
            for each in stage.commands:
                self.assertLessEqual(each.limit, 60)
                self.assertLess(int(each.words[each.words.index("-T") + 1]), each.limit)
                self.assertEqual(each.words[each.words.index("--target-processes") + 1], "all")
                self.assertIn(next(pathlib.Path(word).name for word in each.words if word.endswith("_perf")), stage.preparations[-1].words)
                kinds |= {"threads"} if "-t" in each.words else {"processes"}
        self.assertEqual(kinds, {"threads", "processes"})

    def test_device_tests_run_on_the_machines_driver(self):
        stage = stages.device_stage(self.options())
        self.assertEqual(len(stage.commands), len(stages.DRIVER_TESTS + stages.DEVICE_TESTS))
        for each in stage.commands:
            self.assertEqual(each.environment, {"TUTTI_TEST_DRIVER": "machine"})
            self.assertLess(each.limit, runs.LIMIT / 2)
        for name in stages.DRIVER_TESTS + stages.DEVICE_TESTS:
            folder, stem = name.split(".")
            [source] = (SOURCE / "tests" / folder).rglob(f"{stem}_test.cc")
            if name in stages.DEVICE_TESTS:
                self.assertIn("TestGpus", source.read_text())

    def test_benches_have_all_numbers_of_ranks(self):
        threads, processes = [], []
        for make in (stages.bench_stage, stages.bench_ranks_stage):
            words = make(self.options()).commands[0].words
            words = ["60" if word == runs.LEFT else word for word in words[words.index("perf/gpu.py") + 1:]]
            given = stages.benchmarks.parse_arguments(words)
            self.assertEqual((given.command, given.resume, given.budget), ("bench", True, 60))
            threads += given.threads
            processes += given.processes
        self.assertEqual((sorted(threads), sorted(processes)), ([*range(1, 9)], [*range(2, 9)]))

    def test_every_command_of_ours_exists(self):
        for words in ([], ["--rehearsal"]):
            for make in stages.STAGES.values():
                stage = make(self.options(*words))
                for word in [word for each in [*stage.preparations, *stage.commands] for word in each.words]:
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
