"""Counts what tests did, for `forebay evidence`: recoveries, comparisons, cases. Printed when a run ends."""

from collections import Counter

COUNTS: Counter[str] = Counter()


def happened(unit: str, count: int = 1) -> None:
    COUNTS[unit] += count


def report() -> list[str]:
    return [f"evidence: {count} {unit}" for unit, count in sorted(COUNTS.items())]
