"""Who is banned for a time because of a judgement: bounded, never twice for one reason, never an old one. No Spark.

The ledger is a file beside the checkpoint. A ban is written to Kafka first and then to the ledger, so a fault between
the two writes the same record again: the same key, the same end. What the ledger holds is never written again, so an
operator's `headwater bans remove` stands even if Spark repeats the batch.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from schemas.control import Ban
from spark_streaming.presence.client import JUDGEMENTS

_MINUTE_MS = 60_000
CREATED_BY = "spark presence"


@dataclass(frozen=True, slots=True)
class BanRules:
    """Whom not to ban, and how many at most in a minute."""

    never: tuple[str, ...] = ()  # patterns of client ids: backend-*
    per_minute_max: int = 30

    def spares(self, client_id: str) -> bool:
        """Whether this client is on the list of those who are never banned."""
        return any(fnmatch.fnmatchcase(client_id, pattern) for pattern in self.never)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A client that flaps or is abusive; `id` is what it did."""

    client_id: str
    state: str
    id: str
    until_ms: int


@dataclass(slots=True)
class Ledger:
    """What was decided, until it is over."""

    banned: dict[str, int] = field(default_factory=dict)  # id of the judgement -> its end
    written_ms: list[int] = field(default_factory=list)  # when bans were written, of the last minute

    @classmethod
    def load(cls, file: Path) -> Ledger:
        """The stored one; empty at the first start."""
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        return cls(stored["banned"], stored["written_ms"])

    def save(self, file: Path) -> None:
        """Store it as a whole."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        with part.open("w", encoding="utf-8") as stream:
            json.dump({"banned": self.banned, "written_ms": self.written_ms}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)

    def decide(self, found: Iterable[Judgement], rules: BanRules, now_ms: int) -> tuple[list[Ban], list[Judgement]]:
        """The bans to write now, and the judgements that are held back because there were too many.

        A judgement that is over by now bans nobody: a job that starts again, or from the beginning of the log, does
        not punish for what was long ago.
        """
        self.banned = {each: until_ms for each, until_ms in self.banned.items() if until_ms > now_ms}
        self.written_ms = [each for each in self.written_ms if now_ms - _MINUTE_MS < each <= now_ms]
        bans: list[Ban] = []
        held_back: list[Judgement] = []
        for each in sorted(found, key=lambda one: one.id):
            if each.state not in JUDGEMENTS or each.until_ms <= now_ms or each.id in self.banned:
                continue
            if not each.client_id or "\0" in each.client_id or rules.spares(each.client_id):
                continue
            if len(self.written_ms) >= rules.per_minute_max:
                held_back.append(each)
                continue
            self.banned[each.id] = each.until_ms
            self.written_ms.append(now_ms)
            bans.append(Ban("client_id", each.client_id, each.until_ms / 1000, f"{each.state} ({each.id})", CREATED_BY))
        return bans, held_back
