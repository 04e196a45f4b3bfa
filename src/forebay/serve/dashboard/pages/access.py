"""Login with a key or a one-time token, logout, static files; for admins, the keys and the operator log."""

from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages.routing import AdminActor, Before, Cache, back, form_of_type, pages
from forebay.serve.dashboard.render import STATIC, HtmlPage, link, render_without_store
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import read_actions, record_action
from forebay.serve.security.sessions import check_origin, log_in, log_out, require_session, session_of

router = pages()
_ACTIONS_SHOWN: Final = 100
_KEYS_SHOWN: Final = 500


class LoginForm(Struct, frozen=True):
    key: str = ""


@router.get("/")
async def root(token: str = "") -> str:
    return link("login", token=token) if token else link()


@router.get("/ui")
async def without_slash() -> str:
    return link()


@router.get("/ui/static/{name}")
async def static(name: str) -> Response:
    if name not in STATIC:
        raise not_found(name)
    content, media_type = STATIC[name]
    return Response(content, media_type=media_type, headers={"Cache-Control": "public, max-age=604800, immutable"})


@router.get("/ui/login")
async def login_form(request: Request, token: str = "") -> Response:
    """A one-time token opens a session at once; a key is never accepted in a URL."""
    response = back(link())
    if token and not token.startswith("fb_"):
        if await log_in(request, response, token):
            return response
        return _login_page(request, "That token is used, or too old.")
    return _login_page(request) if session_of(request) is None else response


@router.post("/ui/login")
async def login(request: Request, form: Annotated[LoginForm, form_of_type(LoginForm)]) -> Response:
    check_origin(request)
    response = back(link())
    if await log_in(request, response, form.key):
        return response
    return _login_page(request, "That key is unknown, revoked or expired.", 401)


def _login_page(request: Request, wrong: str = "", status: int = 200) -> Response:
    return render_without_store(request, None, HtmlPage("login.html", "Log in", {"wrong": wrong}, status=status))


async def unknown_page(rest: str) -> Response:
    raise not_found(f"page {rest}")


@router.post("/ui/logout", dependencies=[require_session(*Role)])
async def logout(request: Request) -> Response:
    response = back(link("login"))
    log_out(request, response)
    return response


@router.get("/ui/operators", dependencies=[require_session(Role.ADMIN)])
def operators(cache: Cache, before: Before) -> HtmlPage:
    shown, following = read_actions(cache.store, before, _ACTIONS_SHOWN)
    values = {"actions": shown, "next": following, "first": before is None}
    return HtmlPage("operators.html", "Operator log", values, "operators")


@router.get("/ui/keys", dependencies=[require_session(Role.ADMIN)])
def keys(cache: Cache) -> HtmlPage:
    known = sorted(cache.context.authenticator.keyring.all(), key=lambda key: -key.created_at)
    values = {"keys": known[:_KEYS_SHOWN], "more": max(0, len(known) - _KEYS_SHOWN)}
    return HtmlPage("keys.html", "Keys", values, "keys")


@router.post("/ui/keys/{key_id}/revoke")
def revoke(cache: Cache, key_id: str, actor: AdminActor) -> str:
    """Revoke a key; every server refuses it within seconds."""
    authenticator = cache.context.authenticator
    if authenticator.follower is None or all(key.id != key_id for key in authenticator.keyring.all()):
        raise not_found(f"key {key_id}")
    record_action(cache.store, actor.name, "keys revoke", key_id)
    authenticator.follower.revoke(key_id, actor.name)
    return link("keys")
