"""For admins: what operators did, and who has a key."""

from fastapi import Request
from fastapi.responses import Response

from forebay.serve.dashboard.live import desk_of
from forebay.serve.dashboard.pages.route import Admin, back, pages
from forebay.serve.dashboard.render import Sheet, html, link
from forebay.serve.problems import absent
from forebay.serve.security.acts import read_acts, record_act

router = pages()

_ACTS_SHOWN = 100
_KEYS_SHOWN = 500


@router.get("/ui/acts")
async def acts(request: Request, actor: Admin) -> Response:
    desk, text = desk_of(request), request.query_params.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    shown, following = await desk.ground.call(read_acts, desk.store, before, _ACTS_SHOWN)
    values = {"acts": shown, "next": following, "first": before is None}
    return await html(request, actor, Sheet("acts.html", "Operators’ log", values, "acts"))


@router.get("/ui/keys")
async def keys(request: Request, actor: Admin) -> Response:
    known = sorted(desk_of(request).ground.door.keyring.all(), key=lambda key: -key.created_at)
    values = {"keys": known[:_KEYS_SHOWN], "more": max(0, len(known) - _KEYS_SHOWN)}
    return await html(request, actor, Sheet("keys.html", "Keys", values, "keys"))


@router.post("/ui/keys/{key_id}/revoke")
async def revoke(request: Request, key_id: str, actor: Admin) -> Response:
    """Everywhere within seconds, and for good."""
    ground = desk_of(request).ground
    follower = ground.door.follower
    if follower is None or all(key.id != key_id for key in ground.door.keyring.all()):
        raise absent(f"key {key_id}")
    await record_act(ground, actor, "revoke", f"key {key_id}")
    await ground.call(follower.revoke, key_id, actor.name)
    return back(link("keys"))
