"""`python -m forebay_proof.sim`: run seeds, say what happened, and how to see a failure again.

Exit code 0: every seed held; 1: one did not, or too little happened; 2: the question made no sense.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from time import monotonic

import msgspec

from forebay_proof.sim.cells_simulation import MAX_CELLS
from forebay_proof.sim.faults import Kind
from forebay_proof.sim.report import Total, command, history, line, summary
from forebay_proof.sim.runs import simulate
from forebay_proof.sim.simulation import CHAOS_SECONDS

_EXAMPLES = """\
examples:
  python -m forebay_proof.sim --seed 7
  python -m forebay_proof.sim --seeds 0:300
  python -m forebay_proof.sim --seed 7 --hours 1 --json
  python -m forebay_proof.sim --seeds 0:50 --faults power-cut,lost-reply
  python -m forebay_proof.sim --seed 7 --cells 64

faults: """ + ", ".join(Kind)


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    seeds = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
    if not seeds or seeds[0] < 0:
        raise ValueError(text)
    return seeds


def _kinds(text: str) -> list[Kind]:
    return [] if text == "none" else [Kind(word) for word in text.split(",")]


def _cells(text: str) -> int:
    if not 1 <= int(text) <= MAX_CELLS:
        raise ValueError(text)
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay_proof.sim",
        description="Simulate workers, store, disk and network by seed, with faults, and check every promise.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=_seeds, dest="seeds", metavar="N", help="one seed (default 0)")
    which.add_argument("--seeds", type=_seeds, metavar="A:B", help="the seeds from A up to, not with, B")
    parser.add_argument("--hours", type=float, help=f"simulated hours of chaos (default {CHAOS_SECONDS} seconds)")
    parser.add_argument("--faults", type=_kinds, metavar="KIND,…", help="only these faults, or none")
    parser.add_argument("--cells", type=_cells, default=0, metavar="N", help=f"over so many cells, up to {MAX_CELLS}")
    parser.add_argument("--json", action="store_true", help="one JSON object a seed, and one for the sum")
    parser.set_defaults(seeds=range(1))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # What simulated workers would log is in the story of a seed.
    for name in ("forebay.jobs", "forebay.cells", "forebay.work"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    chaos = CHAOS_SECONDS if options.hours is None else options.hours * 3_600
    total, begun = Total(), monotonic()
    for seed in options.seeds:
        result = simulate(seed, cells=options.cells, chaos_seconds=chaos, chosen=options.faults)
        total.add(result)
        if options.json:
            result.trace.clear()
            _say(msgspec.json.encode(result).decode())
            continue
        if len(options.seeds) <= 20 or not result.ok:
            _say(line(result))
        if not result.ok:
            again = simulate(seed, cells=options.cells, chaos_seconds=chaos, chosen=options.faults, keep=True)
            _say("\n".join(history(again)))
            _say(f"  replay: {command(seed, options.hours, options.faults, options.cells)}")
    _say(msgspec.json.encode(total).decode() if options.json else summary(total, monotonic() - begun))
    return 1 if total.failed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
