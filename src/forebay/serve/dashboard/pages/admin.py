"""For admins: the operator log and the API keys."""

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.dashboard.live import view_cache
from forebay.serve.dashboard.pages.routing import Admin, back, pages
from forebay.serve.dashboard.render import Page, link, render_page
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import read_actions, record_action

router = pages()

_ACTIONS_SHOWN = 100
_KEYS_SHOWN = 500


@router.get("/ui/operators")
async def operators(request: Request, actor: Admin) -> Response:
    cache, text = view_cache(request), request.query_params.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    shown, following = await cache.context.call(read_actions, cache.store, before, _ACTIONS_SHOWN)
    values = {"actions": shown, "next": following, "first": before is None}
    return await render_page(request, actor, Page("operators.html", "Operator log", values, "operators"))


@router.get("/ui/keys")
async def keys(request: Request, actor: Admin) -> Response:
    known = sorted(view_cache(request).context.authenticator.keyring.all(), key=lambda key: -key.created_at)
    values = {"keys": known[:_KEYS_SHOWN], "more": max(0, len(known) - _KEYS_SHOWN)}
    return await render_page(request, actor, Page("keys.html", "Keys", values, "keys"))


@router.post("/ui/keys/{key_id}/revoke")
async def revoke(request: Request, key_id: str, actor: Admin) -> Response:
    """Revoke a key; every server refuses it within seconds."""
    context = view_cache(request).context
    follower = context.authenticator.follower
    if follower is None or all(key.id != key_id for key in context.authenticator.keyring.all()):
        raise not_found(f"key {key_id}")
    await record_action(context, actor, "revoke", f"key {key_id}")
    await context.call(follower.revoke, key_id, actor.name)
    return back(link("keys"))
