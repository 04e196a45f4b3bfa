"""Hostile text in every field that a page shows: it stays text.

A page with a hostile job has exactly the elements and attributes of the same page with a harmless one, in the same
order; nothing on it points anywhere but into the dashboard; and the hostile text is there to be read, so that the test
would notice a field that is no longer shown.
"""

from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace

from forebay.core.instant import days
from forebay.core.job import Draft
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry
from forebay.core.policy import InOrder, KeepFor, Retained, Routing
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.dashboard.render import link
from forebay.serve.security.keys import mint
from forebay.serve.security.operator_log import record_action
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from tests.serve.site import Serving, Site
from tests.serve.visitor import Markup, Visitor, visitor

HARMLESS = "quite harmless"
CORPUS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    "<ScRiPt>alert(1)</ScRiPt>",
    "<script src=//evil.example/x.js></script>",
    "<script/src=data:,alert(1)>",
    "<<script>alert(1)//<</script>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "<img src=`x` onerror=alert(1)>",
    "<img/src='x'/onerror=alert(1)>",
    '<img src="javascript:alert(1)">',
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a></svg>",
    "</svg><script>alert(1)</script>",
    "<math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
    "<iframe src=javascript:alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<a href='jaVasCript:alert(1)'>x</a>",
    "<a href='java&#x0A;script:alert(1)'>x</a>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<form action=https://evil.example><input name=evil>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<style>*{display:none}</style>",
    "<div style=background:url(https://evil.example)>",
    "x' onmouseover='alert(1)",
    'x" onmouseover="alert(1)',
    'x" autofocus onfocus="alert(1)',
    "x` onmouseover=`alert(1)",
    '" style="position:fixed',
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<marquee onstart=alert(1)>",
    "<textarea></textarea><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</pre><script>alert(1)</script>",
    "</code></td></tr></table><h1>owned</h1>",
    "<!--<script>alert(1)</script>-->",
    "--><script>alert(1)</script><!--",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml version='1.0'?><x>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&quot;&gt;&lt;script&gt;",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "\\u003cscript\\u003ealert(1)",
    "{{ 7 * 7 }}{% raw %}{{ config }}",
    "${7*7}#{7*7}<%= 7*7 %>",
    "{{ ''.__class__.__mro__ }}",
    "\u202e<script>alert(1)</script>\u202c",
    "\uff1cscript\uff1ealert(1)\uff1c/script\uff1e",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "line\u2028<script>alert(1)</script>\u2029",
    "\ndata: {}\n\nevent: over\n\n<script>alert(1)</script>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<x contenteditable onblur=alert(1)>lose focus",
)


def test_the_corpus_is_large() -> None:
    assert len(set(CORPUS)) >= 60


def put(store: Store, text: str) -> tuple[int, int]:
    """A dead job and a running one with this text wherever text may be; their ids."""
    payload = {"value": f"p{text}", f"name{text}": [text]}
    hostile = Draft("k", payload, "dies", key=f"k{text}", subject=f"s{text}", meta={"note": f"m{text}"})
    (dead,) = store.enqueue([hostile])
    (lease,) = store.claim([Want("dies", 1)], f"o{text}"[:250], timedelta(hours=1))
    store.settle([(lease, Retry(0, Failure(f"e{text}", f"first {text}", f"trace {text}")))])
    (lease,) = store.claim([Want("dies", 1)], f"o{text}"[:250], timedelta(hours=1))
    store.settle([(lease, DeadLetter(Failure(f"E{text}", f"last {text}", f"trace {text}")))])
    (running,) = store.enqueue([replace(hostile, queue="runs")])
    store.claim([Want("runs", 1)], f"o{text}"[:250], timedelta(hours=1))
    return dead.id, running.id


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not cut a life short."""
    monkeypatch.setattr("forebay.serve.dashboard.views.timeline.READ_SECONDS", 60.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/jobs.db")
    opened.put_spec(QueueSpec(name="dies", retention=KeepFor(days(1)), routing=Routing(2)))
    opened.put_spec(QueueSpec(name="runs", eligibility=InOrder("subject")))
    opened.put_spec(QueueSpec(name="ends", retention=KeepFor(days(1))))
    opened.put_spec(QueueSpec(name="log", retention=Retained(1)))
    yield opened
    opened.close()


def served(store: Store, serve_on: Serving) -> Site:
    return serve_on(store, ServeSettings(port=0, maintain=False))


def check(page: Markup, path: str) -> None:
    """Nothing points or posts elsewhere, nothing runs, nothing is styled in place."""
    for tag, given in page.elements:
        for name, value in given:
            assert not name.startswith("on"), (path, tag, name)
            assert name not in ("style", "srcdoc", "formaction", "xlink:href"), (path, tag, name)
            if name in ("href", "action", "src"):
                assert (value or "").startswith(("/ui/", "#")), (path, tag, name, value)
    assert page.comments == 0
    assert {tag for tag, _ in page.elements}.isdisjoint(
        ("iframe", "object", "embed", "base", "style", "img", "template")
    )


def shown(page: Markup, text: str) -> bool:
    return " ".join(text.split()) in page.text


def live(viewer: Visitor, path: str) -> Markup:
    with viewer.client.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    return Markup(msgspec.json.decode(line.removeprefix("data: ")))


def test_a_job_s_own_page(store: Store, serve_on: Serving) -> None:
    plain = put(store, HARMLESS)
    hostile = {text: put(store, text) for text in CORPUS}
    with visitor(served(store, serve_on), Role.ADMIN) as admin:
        shapes = [admin.get(f"/ui/jobs/{job_id}").shape for job_id in plain]
        for text, ids in hostile.items():
            for job_id, shape in zip(ids, shapes, strict=True):
                path = f"/ui/jobs/{job_id}"
                page = admin.get(path)
                check(page, path)
                assert page.shape == shape, text
                for field in (f"k{text}", f"s{text}", f"m{text}"):
                    assert shown(page, field), (text, field)
            dead = admin.get(f"/ui/jobs/{ids[0]}")
            assert shown(dead, f"E{text}: last {text}"), text
            assert shown(dead, f"trace {text}"), text
            assert shown(dead, f"by o{text}"), text
            encoded = msgspec.json.encode(f"p{text}").decode()
            assert shown(dead, encoded), text


def test_live_parts_of_a_job(store: Store, serve_on: Serving) -> None:
    ids = [put(store, text)[0] for text in (HARMLESS, *CORPUS[::8])]
    with visitor(served(store, serve_on), Role.ADMIN) as admin:
        parts = [live(admin, f"/ui/jobs/{job_id}") for job_id in ids]
    for part in parts:
        check(part, "live")
        assert part.open == []
        assert part.shape == parts[0].shape


def test_lists_of_hostile_things(store: Store, serve_on: Serving) -> None:
    """All of them at once: a page has the elements of as many harmless ones."""
    site = served(store, serve_on)

    for number, text in enumerate(CORPUS):
        put(store, text)
        store.append("log", [msgspec.json.encode({text: text})], [text])
        draft = Draft("k", {"x": text}, "ends")
        store.put_schedule(Schedule(f"s{number}", text, store.now(), draft, zone="UTC" if number % 2 else text))
        record_action(store, f"w{text}"[:200], "act", f"about {text}"[:200], result=text, fact=text)
        key, _ = mint(f"n{text}"[:200], [Role.VIEWER], store.now())
        site.admit(key)
    listed = (
        "jobs jobs?state=dead dead workers schedules keys operators logs/log?group=g queues/runs queues/dies bulk/new"
    )
    paths = ["/ui/", *(f"/ui/{each}" for each in listed.split())]
    with visitor(site, Role.ADMIN) as admin:
        pages = {path: admin.get(path) for path in paths}
        pages |= {f"/ui/schedules/s{number}": admin.get(f"/ui/schedules/s{number}") for number in range(len(CORPUS))}
    for path, page in pages.items():
        check(page, path)
        assert {tag for tag, _ in page.elements if tag == "script"} == {"script"}
        assert sum(tag == "script" for tag, _ in page.elements) == 1, path
        assert "owned" not in [text for tag, text in zip(page.elements, page.texts, strict=False) if tag[0] == "h1"]
    for text in CORPUS:
        assert shown(pages["/ui/keys"], f"n{text}"), text
        assert shown(pages["/ui/operators"], f"about {text}"), text
    assert shown(pages["/ui/workers"], "o<iframe src=javascript:alert(1)>")
    assert shown(pages["/ui/dead"], "E<svg onload=alert(1)>")


def test_what_is_asked_for_comes_back_as_text(store: Store, serve_on: Serving) -> None:
    """Whatever an address or a form says is said back escaped, or not at all."""
    put(store, HARMLESS)
    store.put_schedule(Schedule("night", "30 1 * * *", store.now(), Draft("k", None, "ends")))
    others = "queue kind state cause after tenant"
    forms = ["/ui/jobs text", f"/ui/jobs {others}", "/ui/jobs cause", "/ui/schedules name", "/ui/dead queue"]
    forms += ["/ui/logs/log group", "/ui/jobs/1 did", "/ui/bulk/new cause"]
    with visitor(served(store, serve_on), Role.ADMIN) as admin:
        token = admin.csrf()
        shapes: dict[tuple[str, int], list[object]] = {}
        for text in CORPUS:
            for form in forms:
                path, *fields = form.split()
                answer = admin.client.get(path, params=dict.fromkeys(fields, text))
                page = Markup(answer.text)
                check(page, form)
                assert page.open == [], (form, text)
                known = shapes.setdefault((form, answer.status_code), list(page.shape))
                assert page.shape == known, (form, text)
            output = quote(text, safe="")
            for path in (f"/ui/queues/{output}", f"/ui/nowhere/{output}?token={output}"):
                answer = admin.client.get(path)
                check(Markup(answer.text), path)
            edited = admin.client.post(
                "/ui/schedules/night/edit", data={"csrf": token, "rule": text, "zone": text, "catch_up": text}
            )
            check(Markup(edited.text), "edit")


def test_a_dry_run_shows_hostile_payloads_as_text(store: Store, serve_on: Serving) -> None:
    dead, _ = put(store, CORPUS[0])
    with visitor(served(store, serve_on), Role.ADMIN) as admin:
        for text in CORPUS[::6]:
            patch = msgspec.json.encode({"patched": text}).decode()
            place = admin.done("/ui/bulk", act="redrive", state="dead", patch=patch, limit=5)
            while "dry run under way" in (page := admin.client.get(place).text):
                pass
            check(Markup(page), place)
            assert unescape(msgspec.json.encode(text).decode()) in Markup(page).text or "\n" in text
            admin.done(f"{place}/stop")
    assert store.get([dead])[0] is not None


def test_results_are_text_too(store: Store, serve_on: Serving) -> None:
    for text in CORPUS:
        store.enqueue([Draft("k", None, "ends")])
        (lease,) = store.claim([Want("ends", 1)], "w", timedelta(minutes=1))
        store.settle([(lease, Ack(msgspec.json.encode({"r": text})))])
    with visitor(served(store, serve_on), Role.ADMIN) as admin:
        pages = [admin.get(f"/ui/jobs/{number + 1}") for number in range(len(CORPUS))]
    for text, page in zip(CORPUS, pages, strict=True):
        check(page, text)
        assert page.shape == pages[0].shape
        assert shown(page, msgspec.json.encode(text).decode())


def test_steps_of_an_address_stay_steps() -> None:
    """No name of today needs it: names are plain. An address must not rely on that."""
    assert link("queues", "a/../b?c=1#d") == "/ui/queues/a%2F..%2Fb%3Fc%3D1%23d"
    assert link("jobs", text='"><script>', cause=None, kind="") == "/ui/jobs?text=%22%3E%3Cscript%3E"
