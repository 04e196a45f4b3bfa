"""Rendering pages. Everything is escaped; no template marks anything as safe.

An `HtmlPage` is a template and its values. Its block `live` is what the event stream of an open page sends.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct

from forebay.core.humanize import format_duration, iso, many, number, when
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Job
from forebay.core.limits import MAX_INSTANT
from forebay.core.payload import Json
from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.charts import spark
from forebay.serve.security.mounting import MOUNTED_AT
from forebay.serve.security.redact import redact, redact_errors, redact_label, redact_meta, redact_text
from forebay.serve.security.sessions import csrf_token
from forebay.store.protocol import Store

_HERE: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC: Final[dict[str, tuple[bytes, str]]] = {
    path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in sorted((_HERE / "static").iterdir())
}
VERSION: Final = blake2b(b"".join(content for content, _ in STATIC.values()), digest_size=6).hexdigest()
"""A hash of all static files, part of their URLs, so that browsers may cache them."""

MAX_TEXT: Final = 240
MAX_BODY: Final = 64 * 1024

NAV: Final = (
    ("overview", "", "Overview", Role.VIEWER, True),
    ("jobs", "jobs", "Jobs", Role.VIEWER, False),
    ("dead", "dead", "Dead letters", Role.VIEWER, False),
    ("schedules", "schedules", "Schedules", Role.VIEWER, True),
    ("workers", "workers", "Workers", Role.VIEWER, True),
    ("logs", "logs", "Logs", Role.VIEWER, True),
    ("operators", "operators", "Operator log", Role.ADMIN, True),
    ("keys", "keys", "Keys", Role.ADMIN, True),
)
"""Name, path below /ui, title, required role, and whether the page shows more than one tenant."""


class HtmlPage(Struct, frozen=True):
    """A template and its values. `live`: the page updates itself while it is open."""

    template: str
    title: str
    values: dict[str, Any]
    nav: str = ""
    live: bool = False
    status: int = 200


def link(*steps: object, **wanted: object) -> str:
    """A URL below /ui, where the server is mounted; parameters that are None or empty are left out."""
    path = f"{MOUNTED_AT.get()}/ui/" + "/".join(quote(str(step), safe="") for step in steps)
    chosen = {name: str(value) for name, value in wanted.items() if value not in (None, "")}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def rate(value: float) -> str:
    """A rate per second."""
    return number(value) if value >= 10 or not value else "<0.01" if value < 0.01 else f"{value:.2g}"


def cut(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clock(instant: Instant | None) -> str:
    """The instant, to the millisecond."""
    if instant is None:
        return "–"
    return "never" if instant >= MAX_INSTANT else f"{to_datetime(instant):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def last_error(job: Job) -> str:
    """The last failure in one line, redacted."""
    errors = redact_errors(job)
    return f"{errors[-1].kind}: {errors[-1].message}" if errors else ""


def payload_text(kind: str, value: Json) -> str:
    """Indented JSON, redacted, cut at `MAX_BODY`."""
    return cut(msgspec.json.format(msgspec.json.encode(redact(kind, value)), indent=2).decode(), MAX_BODY)


def body_text(body: bytes) -> str:
    """A log entry in one line, redacted."""
    return plain(redact("", msgspec.json.decode(body)))


def plain(value: Json) -> str:
    """JSON in one line; the value has been redacted already."""
    return msgspec.json.encode(value).decode()


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        duration=format_duration, when=when, iso=iso, number=number, many=many, cut=cut, clock=clock, rate=rate
    )
    made.filters.update(hidden=redact_text, meta=redact_meta)
    made.globals.update(link=link, spark=spark, last_error=last_error, payload_text=payload_text, version=VERSION)
    made.globals.update(body_text=body_text, plain=plain, job_label=redact_label)
    made.globals["m"] = made.get_template("macros.html").module
    for name in made.list_templates():
        # Compiled before the first request.
        made.get_template(name)
    return made


_ENVIRONMENT: Final = _environment()


def _common(request: Request, actor: Actor | None, page: HtmlPage) -> dict[str, Any]:
    """The values of every page; they need no store call."""
    pages = [
        (name, link(*filter(None, [path])), title)
        for name, path, title, role, all_tenants in NAV
        if actor is not None and actor.has(role) and (actor.tenant is None or not all_tenants)
    ]
    return {
        "title": page.title,
        "nav": page.nav,
        "pages": pages,
        "actor": actor,
        "operates": actor is not None and actor.has(Role.OPERATOR),
        "csrf": csrf_token(request) if actor is not None else "",
        "store": request.app.state.context.store.capabilities,
        "live": page.live,
        "notice": "",
    }


def render_without_store(request: Request, actor: Actor | None, page: HtmlPage) -> HTMLResponse:
    """A page that needs no store call, so that it can be shown while the store is unavailable."""
    values = _common(request, actor, page) | page.values
    return HTMLResponse(_ENVIRONMENT.get_template(page.template).render(values), page.status)


async def render_page(request: Request, actor: Actor, page: HtmlPage) -> HTMLResponse:
    """A page, rendered on the thread pool because it reads the store's clock."""
    context = request.app.state.context
    text = await context.call(_render, context.store, page, _common(request, actor, page))
    return HTMLResponse(text, page.status)


async def live_part(request: Request, actor: Actor, page: HtmlPage) -> str:
    """The block `live` alone."""
    context = request.app.state.context
    part: str = await context.call(_render, context.store, page, _common(request, actor, page), "live")
    return part


def _render(store: Store, page: HtmlPage, common: dict[str, Any], block: str | None = None) -> str:
    template = _ENVIRONMENT.get_template(page.template)
    values = {**common, "now": store.now(), **page.values}
    if block is None:
        return template.render(values)
    return "".join(template.blocks[block](template.new_context(values)))
