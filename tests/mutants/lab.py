"""The guards of the lab: a proof that cannot fail proves nothing, and a load that waits for answers hides them."""

from tests.mutants.guards import Mutant

LAB = "src/forebay/lab"
PROOF = ("tests/lab/test_proof.py",)
PARTS = ("tests/lab/test_parts.py",)
DRAW = ("tests/lab/test_draw.py",)
ANSWERS = ("tests/lab/test_run.py", "-k", "answer or full or stall")

LAB_MUTANTS = [
    Mutant(
        "the proof forgets who was accepted",
        f"{LAB}/proof.py",
        "seq for seq in range(len(told)) if told[seq] and not done[seq] and seq not in ended and seq not in still",
        "seq for seq in range(len(told)) if not told[seq] and done[seq]",
        PROOF,
    ),
    Mutant("the dead count as lost", f"{LAB}/proof.py", "and seq not in ended and", "and", PROOF),
    Mutant(
        "two effects by one fence are one",
        f"{LAB}/proof.py",
        "for (seq, _, _), times in self._fences.items() if len(times) > 1",
        "for (seq, _, _), times in self._fences.items() if len(times) > 2",
        PROOF,
    ),
    Mutant(
        "a line that was read twice is two effects",
        f"{LAB}/proof.py",
        "for (seq, _, _), times in self._fences.items() if len(times) > 1",
        "for (seq, _, _), times in self._fences.items()",
        PROOF,
    ),
    Mutant(
        "two jobs for one seq are one",
        f"{LAB}/proof.py",
        "                    if told[seq] and told[seq] != job_id:\n",
        "                    if not told[seq] and told[seq] != 0:\n",
        PROOF,
    ),
    Mutant(
        "a stranger's effect is welcome",
        f"{LAB}/proof.py",
        "            return True\n        return False\n",
        "            return True\n        return True\n",
        PROOF,
    ),
    Mutant(
        "a torn line goes unseen",
        f"{LAB}/proof.py",
        "                    self.torn += 1\n",
        "                    pass\n",
        PROOF,
    ),
    Mutant(
        "too little is enough",
        f"{LAB}/proof.py",
        '"INVALID" if reasons else "PASS",\n            reasons=reasons',
        '"PASS",\n            reasons=reasons',
        PROOF,
    ),
    Mutant(
        "latencies count from the call, not from its instant",
        f"{LAB}/producer.py",
        "self._send(drafts, time.time() if due_at is None else due_at)",
        "self._send(drafts, time.time())",
        ANSWERS,
    ),
    Mutant(
        "what is late is sent all the same",
        f"{LAB}/producer.py",
        "if due_at is not None and time.time() - due_at > order.behind_most:",
        "if due_at is not None and time.time() - due_at > 1_000:",
        ANSWERS,
    ),
    Mutant(
        "a job without a key is asked for again",
        f"{LAB}/producer.py",
        "if not self._order.keys or self._stop.wait",
        "if self._stop.wait",
        ANSWERS,
    ),
    Mutant(
        "a lost answer is not written down",
        f"{LAB}/producer.py",
        '            self._write(_nameless(batch, b"unknown"))\n',
        "",
        ANSWERS,
    ),
    Mutant(
        "half a line stays when the disk is full",
        f"{LAB}/mix.py",
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
        f"{LAB}/histogram.py",
        "math.ceil(math.log(seconds / _LEAST) / _GROWTH)",
        "math.floor(math.log(seconds / _LEAST) / _GROWTH)",
        PARTS,
    ),
    Mutant(
        "poison has many lives", f"{LAB}/draw.py", 'LIVES: Final = {"poison": 3}', 'LIVES: Final = {"poison": 4}', DRAW
    ),
]
