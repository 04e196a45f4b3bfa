"""The guards of the experiments: a judgement that cannot fail, or a case that is measured twice, would say nothing."""

from tests.mutants.guards import Mutant

LAB = "proof/src/forebay_proof/lab"
TESTS = ("tests/lab/test_experiments.py", "-m", "not nightly")

EXPERIMENT_MUTANTS = [
    Mutant(
        "what is done is measured again",
        f"{LAB}/runner.py",
        "[step for step in steps if not self._results.done(*step.key)]",
        "list(steps)",
        TESTS,
    ),
    Mutant(
        "a case that failed counts as done",
        f"{LAB}/runner.py",
        "            self._results.drop(*key)\n            return",
        "            self._results.finish(*key)\n            return",
        TESTS,
    ),
    Mutant(
        "one round for all",
        f"{LAB}/runner.py",
        "for case in cases if number <= case.rounds",
        "for case in cases",
        TESTS,
    ),
    Mutant(
        "a count that must be nought may be one",
        f"{LAB}/experiments/base.py",
        'cases", worst == 0)',
        'cases", worst <= 1)',
        TESTS,
    ),
    Mutant(
        "the least of all cases is judged",
        f"{LAB}/experiments/base.py",
        "max((cell.maximum for cell in self.of(metric).values()), default=None)",
        "min((cell.minimum for cell in self.of(metric).values()), default=None)",
        TESTS,
    ),
    Mutant(
        "a slow recovery is good enough",
        f"{LAB}/experiments/e04_loss.py",
        "cell.maximum <= bound",
        "cell.maximum > 0",
        TESTS,
    ),
    Mutant(
        "an experiment without harm shows something",
        f"{LAB}/experiments/e10_renewal.py",
        "Conclusion(sentence, again > 0)",
        "Conclusion(sentence, again >= 0)",
        TESTS,
    ),
    Mutant(
        "a tally counts no jobs",
        "proof/src/forebay_proof/tally.py",
        "        self._numbers[0] += jobs\n",
        "        self._numbers[0] += 1\n",
        TESTS,
    ),
]
