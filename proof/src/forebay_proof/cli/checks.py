"""`conformance`, `sim` and `power-cuts`."""

from argparse import ArgumentParser

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import FAILED, OK, USAGE

_NAMED = 5
_STORES = ("memory", "sqlite", "postgres", "redis")


def _conformance_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the store, such as sqlite:///trial or memory:// ")
    parser.add_argument("--only", metavar="PATTERN", help="cases that match: leases/*, or a part of the name")
    parser.add_argument("--list", action="store_true", help="list the cases and run none")
    parser.add_argument("--real-time", action="store_true", help="use the store's own clock: slower")


def _conformance(call: Invocation) -> int:
    from forebay_proof.conformance.__main__ import main

    args = call.args
    words = [args.url, *(["--only", args.only] if args.only else [])]
    flags = {"--list": args.list, "--real-time": args.real_time, "--json": args.json}
    return main([*words, *(flag for flag, given in flags.items() if given)])


def _sim_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", metavar="N", default="0", help="one seed (default: 0)")
    parser.add_argument("--seeds", metavar="A:B", help="the seeds from A up to, but not including, B")
    parser.add_argument("--hours", metavar="H", help="simulated hours of chaos")
    parser.add_argument("--faults", metavar="KIND,…", help="only these faults, or none")
    parser.add_argument("--cells", metavar="N", help="over so many cells, up to 64")


def _sim(call: Invocation) -> int:
    from forebay_proof.sim.__main__ import main

    args = call.args
    words = ["--seeds", args.seeds] if args.seeds else ["--seed", args.seed]
    for name in ("hours", "faults", "cells"):
        if getattr(args, name) is not None:
            words += [f"--{name}", getattr(args, name)]
    return main([*words, *(["--json"] if args.json else [])])


def _power_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kind", choices=_STORES, action="append", help="only this kind of store (default: each)")
    parser.add_argument("--cuts", type=int, default=20, metavar="N", help="of each kind (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides how long the store works before a cut"
    )
    parser.add_argument("--relaxed", action="store_true", help="without syncs: losses are expected, exit code 1")


def _power(call: Invocation) -> int:
    from forebay_proof.power_cuts import PowerCuts
    from forebay_proof.servers.process import ServerUnavailable

    args, answer = call.args, OK
    for kind in args.kind or _STORES:
        try:
            result = PowerCuts(kind, args.cuts, args.seed, relaxed=args.relaxed).run(call.screen.note)
        except ServerUnavailable as error:
            call.screen.note(f"{kind}: {error}")
            return USAGE
        if args.json:
            call.screen.emit(result)
        for text in result.lost[:_NAMED]:
            call.screen.note(f"{kind}: {text}")
        if result.lost:
            answer = FAILED
        elif not result.passed and answer == OK:
            call.screen.note(
                f"{kind}: only {result.bit} of {result.cuts} cuts dropped unsynced data: that proves nothing"
            )
            answer = USAGE
    return answer


COMMANDS = (
    Command(
        "conformance",
        "run the conformance suite against a store",
        _conformance,
        """
forebay conformance memory://
forebay conformance sqlite:///trial --only 'leases/*'
""",
        _conformance_arguments,
        takes_store=False,
    ),
    Command(
        "sim",
        "simulate workers, store, disk and network by seed, with faults, and check every guarantee",
        _sim,
        "forebay sim --seed 7\nforebay sim --seeds 0:300",
        _sim_arguments,
        takes_store=False,
    ),
    Command(
        "power-cuts",
        "cut the power of stores under load: what was acknowledged must be there afterwards (root, Linux)",
        _power,
        """
forebay power-cuts --kind sqlite --cuts 5
forebay power-cuts --cuts 200
forebay power-cuts --kind redis --relaxed
""",
        _power_arguments,
        takes_store=False,
    ),
)
