"""All commands of the proof; the entry point `forebay.commands` names this tuple."""

from forebay.cli.command import Command, CommandGroup
from forebay_proof.cli import bench, chaos, checks, evidence, lab

COMMANDS: tuple[Command | CommandGroup, ...] = (
    *lab.COMMANDS,
    *bench.COMMANDS,
    *chaos.COMMANDS,
    *checks.COMMANDS,
    *evidence.COMMANDS,
)
