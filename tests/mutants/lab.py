"""The guards of the lab: a proof that cannot fail proves nothing, and a load that waits for answers hides them."""

from tests.mutants.guards import Mutant

LAB = "proof/src/forebay_proof/lab"
LOAD = "proof/src/forebay_proof/load"
PLUGINS = ("tests/unit/test_plugins.py",)
PROOF = ("tests/lab/test_proof.py",)
PARTS = ("tests/lab/test_parts.py",)
DRAW = ("tests/lab/test_draw.py",)
ANSWERS = ("tests/lab/test_run.py", "-k", "answer or full or stall")

LAB_MUTANTS = [
    Mutant(
        "the proof forgets who was accepted",
        f"{LAB}/audit.py",
        "            if accepted_ids[seq] and not done[seq] and seq not in ended and seq not in still\n",
        "            if not accepted_ids[seq] and done[seq]\n",
        PROOF,
    ),
    Mutant("the dead count as lost", f"{LAB}/audit.py", "and seq not in ended and", "and", PROOF),
    Mutant(
        "two effects by one fence are one",
        f"{LAB}/audit.py",
        "for (seq, _, _), times in self._fences.items() if len(times) > 1",
        "for (seq, _, _), times in self._fences.items() if len(times) > 2",
        PROOF,
    ),
    Mutant(
        "a line that was read twice is two effects",
        f"{LAB}/audit.py",
        "for (seq, _, _), times in self._fences.items() if len(times) > 1",
        "for (seq, _, _), times in self._fences.items()",
        PROOF,
    ),
    Mutant(
        "two jobs for one seq are one",
        f"{LAB}/audit.py",
        "                    if accepted_ids[seq] and accepted_ids[seq] != job_id:\n",
        "                    if not accepted_ids[seq] and accepted_ids[seq] != 0:\n",
        PROOF,
    ),
    Mutant(
        "a stranger's effect is welcome",
        f"{LAB}/audit.py",
        "            return True\n        return False\n",
        "            return True\n        return True\n",
        PROOF,
    ),
    Mutant(
        "a torn line goes unseen",
        f"{LAB}/audit.py",
        "                    self.torn += 1\n",
        "                    pass\n",
        PROOF,
    ),
    Mutant(
        "too little is enough",
        f"{LAB}/audit.py",
        '"INVALID" if reasons else "PASS",\n            reasons=reasons',
        '"PASS",\n            reasons=reasons',
        PROOF,
    ),
    Mutant(
        "latencies count from the call, not from its instant",
        f"{LOAD}/producer.py",
        "self._send(drafts, time.time() if due_at is None else due_at)",
        "self._send(drafts, time.time())",
        ANSWERS,
    ),
    Mutant(
        "what is late is sent all the same",
        f"{LOAD}/producer.py",
        "if due_at is not None and time.time() - due_at > order.max_behind:",
        "if due_at is not None and time.time() - due_at > 1_000:",
        ANSWERS,
    ),
    Mutant(
        "a load ignores its depth",
        f"{LOAD}/producer.py",
        "number * self._order.batch - consumers.jobs() >= self._order.depth",
        "number * self._order.batch - consumers.jobs() >= 10 * self._order.depth",
        ("tests/lab/test_run.py", "-k", "depth"),
    ),
    Mutant(
        "a tally counts claims as runs",
        "proof/src/forebay_proof/tally.py",
        "        self._numbers[1] += jobs\n",
        "        self._numbers[0] += jobs\n",
        ("tests/lab/test_run.py", "-k", "app_counts"),
    ),
    Mutant(
        "a call without keys is repeated",
        f"{LOAD}/producer.py",
        "if not self._order.keys or self._stop.wait",
        "if self._stop.wait",
        ANSWERS,
    ),
    Mutant(
        "a lost answer is not written down",
        f"{LOAD}/producer.py",
        '            self._write(_nameless(batch, b"unknown"))\n',
        "",
        ANSWERS,
    ),
    Mutant(
        "half a line stays when the disk is full",
        f"{LOAD}/handler_log.py",
        "            os.ftruncate(self._handle, os.lseek(self._handle, 0, os.SEEK_END) - written)\n",
        "",
        PARTS,
    ),
    Mutant(
        "a case is done before its rows are there",
        f"{LAB}/results.py",
        "return self._file(ROWS, (experiment, case, round)).exists()",
        "return self._file(ROWS, (experiment, case, round)).parent.exists()",
        PARTS,
    ),
    Mutant(
        "a percentile is less than the truth",
        "proof/src/forebay_proof/histogram.py",
        "math.ceil(math.log(seconds / _MIN_SECONDS) / _GROWTH)",
        "math.floor(math.log(seconds / _MIN_SECONDS) / _GROWTH)",
        PARTS,
    ),
    Mutant(
        "poison has more attempts",
        f"{LOAD}/mix.py",
        'MAX_ATTEMPTS: Final = {"poison": 3}',
        'MAX_ATTEMPTS: Final = {"poison": 4}',
        DRAW,
    ),
    Mutant(
        "a plugin replaces a command of the product",
        "src/forebay/cli/plugins.py",
        "            found.setdefault(command.name, command)\n",
        "            found[command.name] = command\n",
        PLUGINS,
    ),
    Mutant(
        "a worker searches for plugins",
        "src/forebay/cli/plugins.py",
        "    if first in {command.name for command in own}:\n",
        "    if not arguments:\n",
        PLUGINS,
    ),
    Mutant(
        "a missing proof is not named",
        "src/forebay/cli/plugins.py",
        "    if first in PROOF and first not in {command.name for command in found}:\n",
        "    if first in PROOF and not found:\n",
        PLUGINS,
    ),
    Mutant(
        "a window counts latencies from before it",
        "proof/src/forebay_proof/histogram.py",
        "count - earlier.counts.get(bucket, 0) for",
        "count - 0 for",
        ("tests/lab/test_experiments.py", "-k", "tally"),
    ),
    Mutant(
        "evidence names sources that were not imported",
        "proof/src/forebay_proof/evidence.py",
        "if not found.is_relative_to(expected):",
        "if False:",
        ("tests/unit/test_evidence.py", "-k", "another_tree"),
    ),
    Mutant(
        "evidence names sources that changed while it was made",
        "proof/src/forebay_proof/evidence.py",
        "if (now := sources(self._root)) != self._sources:",
        "if (now := self._sources) != self._sources:",
        ("tests/unit/test_evidence.py", "-k", "the_sources_changed"),
    ),
    Mutant(
        "evidence of other sources counts",
        "proof/src/forebay_proof/evidence.py",
        "rounds=[each for each in self.rounds if each.sources == identity])",
        "rounds=[each for each in self.rounds if identity])",
        ("tests/unit/test_evidence.py",),
    ),
]
