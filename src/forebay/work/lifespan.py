"""The hooks of an application in one process that runs handlers: its values, its start and end, and its middleware.

A handler is wired once: around it are the layers of `around_job`, inside of those the values of its job. What is async
runs on the event loop of the process; around a plain handler in a thread, one task of the loop enters and leaves it
while the thread waits. A process value is made once, by whichever job needs it first if no start did.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from functools import wraps
from threading import RLock, Thread
from types import TracebackType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forebay.work.context import Context
from forebay.work.handler import Handler
from forebay.work.hooks import Hooks, Injected, Manager
from forebay.work.signature import HIDDEN_CONTEXT

_log = logging.getLogger("forebay.work")

RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]


class StartupFailed(Exception):
    """A start-up hook or the factory of a value raised; the worker cannot start."""


class Lifespan:
    """`run` executes a coroutine on the event loop of the process, called from outside of it.

    `values`: given instead of what a factory would make, by type.
    """

    def __init__(self, hooks: Hooks, run: RunOnLoop, values: Mapping[Any, Any] | None = None) -> None:
        self._hooks = hooks
        self._run = run
        self._given = dict(values or {})
        self._values: dict[Any, Any] = {**self._given}
        self._managers = ExitStack()
        self._guard = RLock()
        self._started = False

    def start(self, handlers: Iterable[Handler] = ()) -> None:
        """Make the values that these handlers need, then call the start-up hooks; the first error ends it."""
        if self._started:
            return
        self._started = True
        label = ""
        try:
            for handler in handlers:
                label = f"the values of {handler.kind}"
                self.make_values(handler)
            for hook in self._hooks.startup:
                label = hook.name
                self._call_hook(hook)
        except Exception as error:
            self.stop()
            raise StartupFailed(f"{label} failed: {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """Call the shutdown hooks, then close the values, each in reverse order. Errors are logged."""
        if not self._started:
            return
        self._started = False
        for hook in reversed(self._hooks.shutdown):
            try:
                self._call_hook(hook)
            except BaseException as error:
                _log.error("%s failed: %s: %s", hook.name, type(error).__name__, error)
        try:
            self._managers.close()
        except BaseException as error:
            _log.error("closing provided values failed: %s: %s", type(error).__name__, error)
        self._values = {**self._given}

    def stop_within(self, timeout: float) -> bool:
        """As `stop`, for at most so many seconds; False if it has not ended, and goes on in its thread."""
        if not self._started:
            return True
        thread = Thread(target=self.stop, name="forebay-shutdown", daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            _log.error("shutdown hooks did not end within %g s; the process exits without them", timeout)
        return not thread.is_alive()

    def wired(self, registry: Mapping[str, Handler]) -> Mapping[str, Handler]:
        """These handlers with their layers and values; the same mapping if there are none."""
        found = {kind: self.wire(handler) for kind, handler in registry.items()}
        return found if any(found[kind] is not handler for kind, handler in registry.items()) else registry

    def wire(self, handler: Handler) -> Handler:
        """The handler inside its layers. It takes a context in any case, which they share."""
        function, signature = handler.function, handler.signature
        if not self._hooks.job_layers and not signature.injected:
            return handler
        injected, plan = signature.injected.items(), self._plan(handler)

        def shared(arguments: dict[str, Any]) -> dict[Any, Any]:
            name = signature.context_name
            return {**self._values, Context: arguments.pop(HIDDEN_CONTEXT) if name is None else arguments[name]}

        @wraps(function)
        async def awaited(**arguments: Any) -> Any:
            if any(kind not in self._values for kind in plan.process):
                await asyncio.get_running_loop().run_in_executor(None, self._make, plan.process)
            values = shared(arguments)
            async with AsyncExitStack() as stack:
                for kind, step in plan.steps:
                    manager = _opened(step, values)
                    if isinstance(manager, AbstractAsyncContextManager):
                        values[kind] = await stack.enter_async_context(manager)
                    else:
                        values[kind] = stack.enter_context(manager)
                return await function(**arguments, **{name: values[kind] for name, kind in injected})

        @wraps(function)
        def called(**arguments: Any) -> Any:
            self._make(plan.process)
            values = shared(arguments)
            with ExitStack() as stack:
                for kind, step in plan.steps:
                    values[kind] = stack.enter_context(self._plain(step, values))
                return function(**arguments, **{name: values[kind] for name, kind in injected})

        wired = awaited if inspect.iscoroutinefunction(function) else called
        return replace(handler, function=wired, signature=signature.with_context())

    def make_values(self, handler: Handler) -> None:
        """Make the process values that a run of the handler needs, if they are not there yet."""
        self._make(self._plan(handler).process)

    def _plan(self, handler: Handler) -> "_Plan":
        """What a run of the handler enters, in order, each after what it needs."""
        plan = _Plan([], [])
        for layer in self._hooks.job_layers:
            self._add_needs(plan, layer.needs.values())
            plan.steps.append((layer.open_, layer))
        self._add_needs(plan, handler.signature.injected.values())
        return plan

    def _add_needs(self, plan: "_Plan", kinds: Iterable[Any]) -> None:
        for kind in kinds:
            if kind is Context or kind in {*self._given, *plan.process, *(key for key, _ in plan.steps)}:
                continue
            provider = self._hooks.providers[kind]
            self._add_needs(plan, provider.needs.values())
            if provider.scope == "job":
                plan.steps.append((kind, provider))
            else:
                plan.process.append(kind)

    def _make(self, kinds: Iterable[Any]) -> None:
        """Make process values, each after what it needs."""
        for kind in kinds:
            if kind not in self._values:
                with self._guard:
                    provider = self._hooks.providers[kind]
                    self._make(provider.needs.values())
                    if kind not in self._values:
                        self._values[kind] = self._managers.enter_context(self._plain(provider, self._values))

    def _call_hook(self, hook: Injected) -> None:
        self._make(hook.needs.values())
        with self._plain(hook, self._values):
            pass

    def _plain(self, injected: Injected, values: Mapping[Any, Any]) -> AbstractContextManager[Any]:
        """Its context manager for a thread outside of the event loop."""
        manager = _opened(injected, values)
        return _Bridge(manager, self._run) if isinstance(manager, AbstractAsyncContextManager) else manager


class _Plan(Struct):
    """What the runs of one handler need: values of the process, and what each run enters, by its key."""

    process: list[Any]
    steps: list[tuple[Any, Injected]]


def _opened(injected: Injected, values: Mapping[Any, Any]) -> Manager:
    return injected.open_(**{name: values[kind] for name, kind in injected.needs.items()})


class _Bridge(AbstractContextManager[Any]):
    """An async context manager for plain code: one task of the event loop enters it and leaves it."""

    def __init__(self, manager: AbstractAsyncContextManager[Any], run: RunOnLoop) -> None:
        self._manager = manager
        self._run = run

    def __enter__(self) -> Any:
        return self._run(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        suppressed: bool = self._run(self._leave(error))
        return suppressed

    async def _enter(self) -> Any:
        loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[Any] = loop.create_future()
        self._left: asyncio.Future[None] = loop.create_future()
        self._task = loop.create_task(self._hold())
        await asyncio.wait((self._entered, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._entered.done():
            await self._task
        return self._entered.result()

    async def _hold(self) -> None:
        async with self._manager as value:
            self._entered.set_result(value)
            await self._left

    async def _leave(self, error: BaseException | None) -> bool:
        """True: the manager suppressed the error."""
        if error is None:
            self._left.set_result(None)
        else:
            self._left.set_exception(error)
        try:
            await self._task
        except BaseException as raised:
            if raised is error:
                return False
            raise
        return error is not None
