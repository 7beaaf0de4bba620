"""An edge looks for cycles by the clock, however little it allocates."""

from __future__ import annotations

import asyncio
import gc
import weakref

from support.edges import until

from edge.cli.edge import look_for_cycles


class Ring:
    def __init__(self) -> None:
        self.ring = self


async def test_a_cycle_goes_though_nothing_else_is_allocated() -> None:
    gc.disable()
    looking = asyncio.create_task(look_for_cycles(0.01))
    try:
        left = weakref.ref(Ring())
        await until(lambda: left() is None, "the cycle is still there")
    finally:
        looking.cancel()
        gc.enable()
