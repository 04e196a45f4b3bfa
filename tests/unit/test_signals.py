"""A signal may come while the main thread holds any lock of its own: no handler of ours waits for one."""

from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from forebay import Forebay
from forebay.cli.reload import Reloader
from forebay.work.options import Options
from forebay.work.supervisor import Supervisor
from forebay.work.worker import Worker
from tests.waiting import PATIENCE


def a_worker() -> Worker:
    return Worker(Forebay("memory://"), Options())


def a_supervisor() -> Supervisor:
    return Supervisor("app:fb", Forebay("memory://"), Options(), 1)


def a_reloader() -> Reloader:
    return Reloader("forebay.demo.mix:fb", ["true"], lambda _: None)


@pytest.mark.parametrize("make", [a_worker, a_supervisor, a_reloader])
def test_a_handler_of_signals_waits_for_no_lock(make: Callable[[], Worker | Supervisor | Reloader]) -> None:
    one = make()
    with ExitStack() as held:
        for event in [value for value in vars(one).values() if isinstance(value, Event)]:
            held.enter_context(event._cond)  # type: ignore[attr-defined]
        handling = Thread(target=one._on_signal, args=(15, None), daemon=True)
        handling.start()
        handling.join(PATIENCE)
        assert not handling.is_alive()
