"""perf/compare/compare_goals.py on figures made up so that the verdicts are known. Usage: goals_test.py FOLDER (perf/compare)"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
import compare_goals  # noqa: E402


def figures(tutti, baseline, sizes=(4096, 65536, 1 << 20), ranks=2, collective="all_reduce"):
    medians = {}
    for size in sizes:
        medians[(ranks, collective, "tutti registered", size)] = tutti
        medians[(ranks, collective, "openmpi", size)] = baseline
        medians[(ranks, collective, "gloo", size)] = 100 * baseline
    return medians


class Goals(unittest.TestCase):
    def test_the_ratio_is_to_the_best_peer(self):
        self.assertEqual(compare_goals.ratios(figures(2, 6), 2, "all_reduce", "tutti registered"),
                         {4096: 3, 65536: 3, 1 << 20: 3})

    def test_met_and_not_met(self):
        for baseline, met in ((8, True), (6, False)):
            goals = compare_goals.evaluate(figures(2, baseline), [2])
            self.assertEqual([row["met"] for row in goals], [met], goals)

    def test_one_bad_size_fails_a_good_mean(self):
        medians = figures(1, 20)
        medians[(2, "all_reduce", "openmpi", 65536)] = 1.5
        goals = compare_goals.evaluate(medians, [2])
        self.assertFalse(goals[0]["met"])
        self.assertIn("least 1.50 at 64 KiB", goals[0]["measured"])

    def test_the_limit(self):
        medians = {(2, "all_reduce", "tutti registered", 1 << 20): 100, (2, "all_reduce", "limit", 1 << 20): 79}
        goals = compare_goals.evaluate(medians, [2])
        self.assertEqual([row["met"] for row in goals], [False])
        medians[(2, "all_reduce", "limit", 1 << 20)] = 81
        self.assertEqual([row["met"] for row in compare_goals.evaluate(medians, [2])], [True])

    def test_movers_have_the_copy_as_their_limit(self):
        medians = {(2, "all_gather", "tutti registered", 1 << 20): 100, (2, "copy", "limit", 1 << 20): 50}
        self.assertEqual(compare_goals.limit_ratios(medians, 2, "all_gather", "tutti registered"), {1 << 20: 0.5})

    def test_nothing_measured_is_no_goal(self):
        self.assertEqual(compare_goals.evaluate({}, [2, 4]), [])


if __name__ == "__main__":
    unittest.main()
