"""An app whose handlers all run on the loop: its workers claim ahead of what they run."""

import asyncio

from forebay.client import Forebay
from forebay.work.context import Context
from tests.process.apps import say

fb = Forebay()


@fb.job
async def quick(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.sleep(0.01)
    say("effect", seq, ctx)
