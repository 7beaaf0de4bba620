"""An event loop with virtual time, and processes on it that can be paused and killed.

The clock jumps to the next timer when nothing is ready, so an hour costs what happens in it. Every callback belongs to
the process in whose context it was scheduled (`Process.context`): a paused one's are held back while time goes on, a
killed one's never run again. Nothing here reads a real clock, so a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import time as real_time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from heapq import heappop, heappush
from types import ModuleType
from typing import Any

from edge.node import node

EPOCH_S = 1_700_000_000.0  # what the wall clocks show when the loop's clock shows 0

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """What runs, stops and dies together. `clock_offset_s`: by how much its wall clock is ahead."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.loop = loop
        self.is_paused = False
        self.is_dead = False
        self.clock_offset_s = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        self._held: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: what has become due meanwhile runs now, in its order."""
        self.is_paused = False
        held, self._held = self._held, []
        self.loop.ready.extend(held)

    def kill(self) -> None:
        """SIGKILL."""
        self.is_dead = True
        self._held.clear()

    def takes(self, handle: asyncio.Handle) -> bool:
        """Whether the callback runs now."""
        if self.is_paused and not self.is_dead:
            self._held.append(handle)
        return not (self.is_paused or self.is_dead)

    def live_tasks(self) -> list[asyncio.Task[Any]]:
        self.tasks = [task for task in self.tasks if not task.done()]
        return self.tasks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work, context=self.context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_at(when, callback, *args, context=self.context)


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as tasks, futures and timers need: no sockets, no threads, no signals."""

    def __init__(self) -> None:
        self.ready: deque[asyncio.Handle] = deque()
        self.callbacks = 0
        self.exceptions: list[dict[str, Any]] = []
        self.outside = Process("outside", self)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._scheduled = 0
        self._now = 0.0
        self._is_closed = False

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            self._scheduled += 1
            heappush(self._timers, (when, self._scheduled, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.get(_PROCESS) if context is not None else _PROCESS.get()
        (process or self.outside).tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.exceptions.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.exceptions.append(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def close(self) -> None:
        self._is_closed = True
        self.ready.clear()
        self._timers.clear()

    # Running

    def run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Run until the condition holds; False: it did not for so long, or nothing is left that could happen."""
        deadline = self._now + timeout_s
        while not condition():
            if not self._run_once(deadline):
                return condition()
        return True

    def run_for(self, duration_s: float) -> None:
        deadline = self._now + duration_s
        while self._run_once(deadline):
            pass

    def _run_once(self, deadline: float) -> bool:
        """Run one callback; False: there is none before the deadline, to which the clock has moved."""
        while True:
            while self.ready:
                handle = self.ready.popleft()
                if handle._cancelled:
                    continue
                process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
                if process is None or process.takes(handle):
                    self.callbacks += 1
                    handle._run()
                    return True
            timers = self._timers
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if not timers or timers[0][0] > deadline:
                self._now = max(self._now, deadline)
                return False
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                handle = heappop(timers)[2]
                if not handle._cancelled:
                    self.ready.append(handle)

    def dispose(self, processes: list[Process]) -> None:
        """Close, and throw away the tasks that were left: nothing of theirs may run when they are collected."""
        self.close()
        for process in [*processes, self.outside]:
            process.is_dead = True
            for task in process.live_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                for _ in range(20):
                    try:
                        coroutine.close()
                        break
                    except BaseException:
                        continue
        self.ready.clear()


class VirtualClocks(ModuleType):
    """Stands for the `time` module: the loop's clock, and the wall clock of the process that asks."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__("time")
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    perf_counter = monotonic

    def time(self) -> float:
        process = _PROCESS.get()
        return EPOCH_S + self._loop.time() + (process.clock_offset_s if process is not None else 0.0)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """A running loop with virtual time; meanwhile the modules of bridge and edge read its clocks.

    Garbage is not collected meanwhile: what a run leaves goes when it is over.
    """
    loop = VirtualLoop()
    clocks = VirtualClocks(loop)
    places = _clock_places()
    for place in places:
        place.patch(clocks)
    interval_s, node.STATS_INTERVAL_S = node.STATS_INTERVAL_S, 20.0  # nobody looks at them here
    former = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(loop)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield loop
    finally:
        loop.close()
        asyncio.events._set_running_loop(former)
        node.STATS_INTERVAL_S = interval_s
        for place in places:
            place.restore()
        if collects:
            gc.enable()


class _Place:
    """Where a real clock is held: a module's `time`, or the defaults of a function."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name
        self._real = getattr(owner, name)

    def patch(self, clocks: VirtualClocks) -> None:
        setattr(self._owner, self._name, _virtual(self._real, clocks))

    def restore(self) -> None:
        setattr(self._owner, self._name, self._real)


def _virtual(held: Any, clocks: VirtualClocks) -> Any:
    if held is real_time:
        return clocks
    if isinstance(held, dict):
        return {name: _virtual(value, clocks) for name, value in held.items()}
    if isinstance(held, tuple):
        return tuple(_virtual(value, clocks) for value in held)
    if held is real_time.monotonic:
        return clocks.monotonic
    return clocks.time if held is real_time.time else held


_CLOCKS = (real_time.monotonic, real_time.time)


@cache
def _clock_places() -> tuple[_Place, ...]:
    """In all modules of ours that are imported."""
    places: list[_Place] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("bridge", "edge", "schemas"):
            continue
        if getattr(module, "time", None) is real_time:
            places.append(_Place(module, "time"))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name:
                places += _default_clocks(value)
    return tuple(places)


def _default_clocks(owner: type) -> Iterator[_Place]:
    for function in vars(owner).values():
        for name in ("__kwdefaults__", "__defaults__"):
            defaults = getattr(function, name, None)
            values = defaults.values() if isinstance(defaults, dict) else defaults or ()
            if any(value is clock for value in values for clock in _CLOCKS):
                yield _Place(function, name)
