"""Who owns which session, as one node sees it: what `headwater.claims` says, folded record by record. Pure.

Every node reads the same records in the same order, so all views are equal once they have read as far. The rules::

    claim       the last valid one of a client is in force; its offset is the owner epoch
    void        another principal's claim while a session is there: the claim in force is durable, or not released
    released    the owner of that epoch has gone; the session stays, and with it its principal
    forgotten   the session of that epoch, and all before, are over; a later claim is not touched

Compaction keeps the last record of a client only. When that is not the one that counts (a release that lands behind the
next claim, a void claim), the client is in ``misplaced`` until what counts has been written again behind it
(read-repair). A view that begins behind a compaction is then the same as one that has read everything; only claims that
were superseded and never released may be missing from it. So they count for a while only: Kafka must keep records
uncompacted for longer (min.compaction.lag.ms).
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import Literal

from schemas.claims import Claim, Forgotten

EARLIER_KEPT_MS = 600_000  # a superseded owner has released or was fenced by then; min.compaction.lag.ms is longer
EARLIER_MAX = 32  # superseded claims of one client that are not released: nodes die, clients hammer
FORGOTTEN_MAX = 100_000  # clients whose end is remembered, so that what lands behind it is seen as late
FORGOTTEN_KEPT_MS = 86_400_000  # as long as Kafka keeps the tombstone itself (delete.retention.ms)
NOTHING_VOID = -1

Outcome = Literal["claimed", "repeated", "released", "void", "older", "forgotten"]


class OpenClaim:
    """A claim that counts. ``is_released`` is set when its owner has gone."""

    __slots__ = ("durable", "epoch", "incarnation", "is_released", "node_id", "principal")

    def __init__(self, epoch: int, claim: Claim) -> None:
        self.epoch = epoch
        self.principal = intern(claim.principal)
        self.node_id = intern(claim.node_id)
        self.incarnation = intern(claim.incarnation)
        self.durable = claim.durable
        self.is_released = claim.is_released

    @property
    def claim(self) -> Claim:
        """The record that says all of it."""
        return Claim(
            self.principal,
            self.node_id,
            self.incarnation,
            self.durable,
            epoch=self.epoch,
            is_released=self.is_released,
        )

    def __repr__(self) -> str:
        what = "released" if self.is_released else "open"
        return f"<OpenClaim {self.epoch} {self.principal!r} on {self.node_id}/{self.incarnation} {what}>"


class ClaimsView:
    """Client id -> the claim in force, and the earlier ones that are not released."""

    def __init__(self) -> None:
        self._claims: dict[str, OpenClaim] = {}
        self._earlier: dict[str, list[tuple[int, OpenClaim]]] = {}  # with the time of their being superseded
        self._forgotten: dict[str, tuple[int, int]] = {}  # epoch and time, in the order of forgetting
        self._counts: dict[Outcome, int] = {
            "claimed": 0, "repeated": 0, "released": 0, "void": 0, "older": 0, "forgotten": 0
        }  # fmt: skip
        self.misplaced: dict[str, int] = {}
        """Clients whose last record is not the one that counts, with the offset of their last void claim."""

    def __len__(self) -> int:
        return len(self._claims)

    def apply(self, client_id: str, record: Claim | Forgotten, offset: int, timestamp_ms: int) -> Outcome:
        """Take one record of the client, in the order of the log."""
        if isinstance(record, Claim):
            outcome = self._apply_claim(client_id, record, offset, timestamp_ms)
        else:
            outcome = self._apply_forgotten(client_id, record, offset, timestamp_ms)
        self._counts[outcome] += 1
        return outcome

    def owner(self, client_id: str) -> OpenClaim | None:
        """The claim in force, released or not; None: there is no session."""
        return self._claims.get(client_id)

    def earlier(self, client_id: str, before_epoch: int) -> tuple[OpenClaim, ...]:
        """The durable claims before this epoch that are not released, in their order."""
        return tuple(claim for _, claim in self._earlier.get(client_id, ()) if claim.epoch < before_epoch)

    def superseded(self) -> list[str]:
        """The clients with durable claims that were superseded and are not released."""
        return list(self._earlier)

    def find(self, client_id: str, epoch: int) -> OpenClaim | None:
        """The claim of this epoch, as long as it is in force or not released."""
        held = self._claims.get(client_id)
        if held is not None and held.epoch == epoch:
            return held
        return next((claim for _, claim in self._earlier.get(client_id, ()) if claim.epoch == epoch), None)

    def repair(self, client_id: str) -> Claim | Forgotten | None:
        """What has to be written so that the client's last record is the one that counts; None: nothing."""
        void = self.misplaced.get(client_id)
        if void is None:
            return None
        held = self._claims.get(client_id)
        if held is not None:
            claim = held.claim
            if void <= held.epoch:
                return claim
            return Claim(
                claim.principal,
                claim.node_id,
                claim.incarnation,
                claim.durable,
                epoch=claim.epoch,
                is_released=claim.is_released,
                seen=void,
            )
        epoch, _ = self._forgotten[client_id]
        return Forgotten(epoch, void if void > epoch else None)

    def orphans(self, is_live: Callable[[str, str], bool]) -> list[tuple[str, OpenClaim]]:
        """The claims in force whose owner is not there any more and has not released them, with their clients.

        ``is_live`` is asked once per node and incarnation. All claims are looked at: 0.1 s for a million.
        """
        answers: dict[tuple[str, str], bool] = {}
        orphans = []
        for client_id, claim in self._claims.items():
            if claim.is_released:
                continue
            owner = (claim.node_id, claim.incarnation)
            if owner not in answers:
                answers[owner] = is_live(*owner)
            if not answers[owner]:
                orphans.append((client_id, claim))
        return orphans

    def starting_with(self, prefix: str) -> list[tuple[str, OpenClaim]]:
        """The claims in force whose client id starts so."""
        return [(client_id, claim) for client_id, claim in self._claims.items() if client_id.startswith(prefix)]

    def claims_of(self, node_id: str) -> list[tuple[str, OpenClaim]]:
        """The claims in force that the node has not released, with their clients."""
        return [
            (client_id, claim)
            for client_id, claim in self._claims.items()
            if claim.node_id == node_id and not claim.is_released
        ]

    def expire(self, now_ms: int) -> None:
        """Remember no longer which sessions have ended long ago."""
        while self._forgotten:
            client_id, (_, at_ms) = next(iter(self._forgotten.items()))
            if at_ms + FORGOTTEN_KEPT_MS > now_ms and len(self._forgotten) <= FORGOTTEN_MAX:
                return
            del self._forgotten[client_id]
            self.misplaced.pop(client_id, None)

    def discard(self, is_gone: Callable[[str], bool]) -> None:
        """Drop all that is known of the clients that ``is_gone`` names: their part of the log is gone."""
        for client_id in [each for each in self._claims if is_gone(each)]:
            del self._claims[client_id]
        for held in (self._earlier, self._forgotten, self.misplaced):
            for client_id in [each for each in held if is_gone(each)]:
                del held[client_id]

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and `$SYS`."""
        return {
            "claims": len(self._claims),
            "claims_superseded_open": sum(len(claims) for claims in self._earlier.values()),
            "forgotten_remembered": len(self._forgotten),
            "misplaced": len(self.misplaced),
            **{f"records_{outcome}": count for outcome, count in self._counts.items()},
        }

    def snapshot(self) -> dict[str, tuple[int, str, str, str, bool, bool]]:
        """The claims in force, to compare two views."""
        return {
            client_id: (
                claim.epoch,
                claim.principal,
                claim.node_id,
                claim.incarnation,
                claim.durable,
                claim.is_released,
            )
            for client_id, claim in self._claims.items()
        }

    def _apply_claim(self, client_id: str, claim: Claim, offset: int, timestamp_ms: int) -> Outcome:
        is_new = claim.epoch is None
        epoch = offset if claim.epoch is None else claim.epoch
        seen = max(epoch, claim.seen or 0)
        held = self._claims.get(client_id)
        forgotten = self._forgotten.get(client_id)
        if forgotten is not None and epoch <= forgotten[0]:
            return self._older(client_id)
        if held is not None:
            if epoch == held.epoch:
                return self._repeat(client_id, held, claim, seen)
            if seen < held.epoch:
                return self._older(client_id, epoch if claim.is_released else None)
            if is_new and _is_void(claim, held):
                self.misplaced[client_id] = offset
                return "void"
            if epoch > held.epoch and held.durable and not held.is_released:
                self._keep_earlier(client_id, held, timestamp_ms)
        if forgotten is not None:
            del self._forgotten[client_id]
        self._claims[client_id] = OpenClaim(epoch, claim)
        if not is_new:
            self._settle(client_id, seen)
        return "claimed" if not claim.is_released else "released"

    def _repeat(self, client_id: str, held: OpenClaim, claim: Claim, seen: int) -> Outcome:
        """A record of the epoch in force: its release, or read-repair."""
        if claim.is_released:
            outcome: Outcome = "repeated" if held.is_released else "released"
            held.is_released = True
        elif held.is_released:
            return self._older(client_id)
        else:
            outcome = "repeated"
        self._settle(client_id, seen)
        return outcome

    def _apply_forgotten(self, client_id: str, record: Forgotten, offset: int, timestamp_ms: int) -> Outcome:
        epoch = offset if record.epoch is None else record.epoch
        seen = max(epoch, record.seen or 0)
        held = self._claims.get(client_id)
        if held is not None and seen < held.epoch:
            return self._older(client_id, epoch)
        known = self._forgotten.pop(client_id, None)
        if known is not None and epoch < known[0]:
            self._forgotten[client_id] = known
            return self._older(client_id)
        if held is not None:
            del self._claims[client_id]
            self._earlier.pop(client_id, None)
        self._forgotten[client_id] = (epoch, timestamp_ms)
        self._settle(client_id, seen)
        return "forgotten"

    def _older(self, client_id: str, ended_epoch: int | None = None) -> Outcome:
        """The record changes nothing but the earlier claim that it may end, and now it is the last one."""
        self.misplaced.setdefault(client_id, NOTHING_VOID)
        earlier = self._earlier.get(client_id)
        if ended_epoch is not None and earlier is not None:
            left = []
            for superseded in earlier:
                if superseded[1].epoch == ended_epoch:
                    superseded[1].is_released = True
                else:
                    left.append(superseded)
            self._put_earlier(client_id, left)
        return "older"

    def _settle(self, client_id: str, seen: int) -> None:
        """The last record is the one that counts, also for a reader that has only a void claim of before."""
        void = self.misplaced.get(client_id)
        if void is not None and void <= seen:
            del self.misplaced[client_id]

    def _keep_earlier(self, client_id: str, claim: OpenClaim, timestamp_ms: int) -> None:
        oldest_ms = timestamp_ms - EARLIER_KEPT_MS
        earlier = [entry for entry in self._earlier.get(client_id, ()) if entry[0] >= oldest_ms]
        self._put_earlier(client_id, [*earlier, (timestamp_ms, claim)][-EARLIER_MAX:])

    def _put_earlier(self, client_id: str, earlier: list[tuple[int, OpenClaim]]) -> None:
        if earlier:
            self._earlier[client_id] = earlier
        else:
            self._earlier.pop(client_id, None)


def _is_void(claim: Claim, held: OpenClaim) -> bool:
    return claim.principal != held.principal and (held.durable or not held.is_released)
