"""What an application attaches to its jobs: start-up and shutdown hooks, middleware, and values injected by type.

    @fb.on_startup, @fb.on_shutdown        once in each process that runs handlers
    @fb.around_job                         a generator function around each run: code, `yield`, code
    @fb.around_enqueue                     a generator function around each enqueue; it may yield a changed draft
    fb.provide(Pool, make_pool)            a handler's parameter annotated `Pool` is injected, and not in the payload

Declarations only; `forebay.work.lifespan` runs them. Whatever is wrong with a declaration is refused when it is made.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Literal, TypeVar

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.work.context import Context
from forebay.work.signature import injectable, parameter_types, type_name

Scope = Literal["process", "job"]
Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Injected(Struct, frozen=True):
    """A function that is called with injected values. `needs`: its parameters, by type.

    open_      makes its context manager; the value of a plain function is that of a context manager that does nothing
    awaited    it is a coroutine function or an async generator function
    """

    name: str
    open_: Callable[..., Manager]
    needs: Mapping[str, Any]
    awaited: bool
    scope: Scope = "process"


class Hooks:
    """The declarations of one application, in the order in which they were made."""

    def __init__(self) -> None:
        self.startup: list[Injected] = []
        self.shutdown: list[Injected] = []
        self.job_layers: list[Injected] = []
        self.enqueue_layers: list[Callable[[Draft], AbstractContextManager[Any]]] = []
        self.providers: dict[Any, Injected] = {}

    @property
    def needs_loop(self) -> bool:
        """Whether any of them is awaited."""
        every = (*self.startup, *self.shutdown, *self.job_layers, *self.providers.values())
        return any(each.awaited for each in every)

    @property
    def needs_shutdown(self) -> bool:
        """Whether a process that ends has something to close."""
        return bool(self.shutdown or self.providers)

    def enter_enqueue(self, stack: ExitStack, draft: Draft) -> Draft:
        """Enter every layer around an enqueue; the draft as they leave it."""
        for layer in self.enqueue_layers:
            changed = stack.enter_context(layer(draft))
            if not isinstance(changed, Draft | None):
                what = f"it yielded {type(changed).__name__}"
                raise Invalid(
                    f"around_enqueue of {_name(layer)}", what, "yield a Draft, or nothing to leave it as it is"
                )
            draft = draft if changed is None else changed
        return draft

    def check_enqueue_layer(self, label: str, layer: Callable[..., Any]) -> None:
        """It takes the draft and nothing else: there is no job yet, and this process may have no values."""
        try:
            inspect.signature(layer).bind(None)
        except TypeError as error:
            remedy = "write def layer(draft: Draft); what else it needs is a global, or in a closure"
            raise Invalid(label, f"it cannot be called with the draft alone: {error}", remedy) from None
        for name, hint, _ in parameter_types(label, layer):
            if (found := injectable(hint, self.providers)) is not None:
                what = f"nothing is injected into its parameter {name!r} ({type_name(found)})"
                raise Invalid(label, what, "take the draft only; a layer of around_job has values")

    def enqueue_layers_for(self, kinds: Container[str]) -> Callable[[ExitStack, Draft], Draft]:
        """As `enter_enqueue`, for drafts of these kinds; others belong to another app of the store."""
        return lambda stack, draft: self.enter_enqueue(stack, draft) if draft.kind in kinds else draft

    def injected(
        self, function: Callable[..., Any], what: str, *, yields: bool | None = None, scope: Scope = "process"
    ) -> Injected:
        if not callable(function):
            raise Invalid(what, f"{function!r:.60} is not callable", "give a function")
        base = inspect.unwrap(function)
        generator = inspect.isgeneratorfunction(base) or inspect.isasyncgenfunction(base)
        label = f"{what} of {_name(function)}"
        if yields is not None and generator is not yields:
            remedy = "write code, a bare yield, code" if yields else "return instead of yield"
            raise Invalid(label, f"it is {'a' if generator else 'no'} generator function", remedy)
        needs = {}
        for name, hint, optional in parameter_types(label, function):
            kind = injectable(hint, self.providers)
            if kind is None and not optional:
                remedy = f"call provide({type_name(hint)}, …) before"
                raise Invalid(label, f"nothing provides its parameter {name!r} ({type_name(hint)})", remedy)
            if kind is not None:
                needs[name] = self._checked(label, name, kind, scope)
        return Injected(label, _managed(function, base), needs, _is_awaited(base), scope)

    def _checked(self, label: str, name: str, kind: Any, scope: Scope) -> Any:
        """The type, if a function of this scope may have it."""
        if scope == "process" and (kind is Context or self.providers[kind].scope == "job"):
            remedy = 'use scope="job"' if label.startswith("provide") else "take values of the process only"
            raise Invalid(label, f"its parameter {name!r} belongs to a job, and there is none yet", remedy)
        return kind


class Hooked:
    """The decorators by which an application declares its hooks."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    def on_startup(self, hook: F) -> F:
        """Call the function once in each process that runs handlers, before its first job.

        It may be async, and may take provided values of the process. If it raises, the worker exits.
        """
        self.hooks.startup.append(self.hooks.injected(hook, "on_startup", yields=False))
        return hook

    def on_shutdown(self, hook: F) -> F:
        """Call the function once when such a process ends, after the drain; the last one declared is called first."""
        self.hooks.shutdown.append(self.hooks.injected(hook, "on_shutdown", yields=False))
        return hook

    def around_job(self, layer: F) -> F:
        """Run the generator function around each run of a handler; the first one declared is the outermost.

        A plain one surrounds plain and async handlers alike; an async one runs on the event loop. Its parameters are a
        `Context` and provided values. What the handler raises is raised at its `yield`.
        """
        self.hooks.job_layers.append(self.hooks.injected(layer, "around_job", yields=True, scope="job"))
        return layer

    def around_enqueue(self, layer: F) -> F:
        """Run the generator function around each enqueue of this app; it receives the draft, and may yield another."""
        name = _name(layer)
        if not inspect.isgeneratorfunction(inspect.unwrap(layer)):
            remedy = "write def with a bare yield: enqueues are plain calls too"
            raise Invalid(f"around_enqueue of {name}", "it is not a plain generator function", remedy)
        self.hooks.check_enqueue_layer(f"around_enqueue of {name}", layer)
        self.hooks.enqueue_layers.append(layer if layer is not inspect.unwrap(layer) else contextmanager(layer))
        return layer

    def provide(self, kind: type[T], factory: Callable[..., Any], *, scope: Scope = "process") -> None:
        """Inject what the factory returns, or yields, into parameters annotated with this type.

        scope  "process": made once in a process, before its first job that needs it, and closed at shutdown;
               "job": made for each run and closed after it, and may take the `Context`
        """
        name = type_name(kind)
        if scope not in ("process", "job"):
            raise Invalid(f"provide({name})", f"the scope is {scope!r}", 'use "process" or "job"')
        if getattr(kind, "__module__", None) in ("builtins", "typing", "types") and not inspect.isroutine(kind):
            raise Invalid(f"provide({name})", "parameters of this type are payload", "make a class of your own for it")
        if kind in self.hooks.providers:
            raise Invalid(f"provide({name})", "it is provided already", "provide a type once")
        self.hooks.providers[kind] = self.hooks.injected(factory, f"provide({name})", scope=scope)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _is_awaited(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _managed(function: Callable[..., Any], base: Callable[..., Any]) -> Callable[..., Manager]:
    """The function as one that makes a context manager; one decorated with `contextmanager` is one already."""
    if inspect.isgeneratorfunction(base):
        return function if function is not base else contextmanager(function)
    if inspect.isasyncgenfunction(base):
        return function if function is not base else asynccontextmanager(function)
    if inspect.iscoroutinefunction(function):

        @asynccontextmanager
        async def awaited(**values: Any) -> AsyncIterator[Any]:
            yield await function(**values)

        return awaited

    @contextmanager
    def called(**values: Any) -> Iterator[Any]:
        yield function(**values)

    return called
