"""The publisher against a log whose every answer the test gives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from support.logs import RecordingSink, ScriptedLog, VirtualClock, destination, turns

from bridge.log import LogUnavailable, ProducerPoisoned, RecordRefused
from bridge.memory_log import MemoryLog
from bridge.publisher import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Publisher


class Bench:
    """A publisher, its scripted log, its sink, its clock. With `runs`, what is appended together is one run."""

    def __init__(self, buffer_bytes_max: int = 1_000_000, *, runs: bool = False) -> None:
        self._runs = runs
        self.log = ScriptedLog()
        self.sink = RecordingSink()
        self.clock = VirtualClock()
        self.after_batches = 0
        self.publisher = Publisher(self.log, self._after_batch, buffer_bytes_max=buffer_bytes_max, clock=self.clock)

    def _after_batch(self) -> None:
        self.after_batches += 1

    def append(self, *tokens: int, partition: int = 0, size: int = 1) -> None:
        values = [b"%d" % token if size == 1 else b"x" * size for token in tokens]
        if self._runs:
            self.publisher.append_run(destination(partition), values, (), self.sink, list(tokens))
            return
        for token, value in zip(tokens, values, strict=True):
            self.publisher.append(destination(partition), value, (), self.sink, token)


@pytest.fixture(params=[False, True], ids=["records", "runs"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    made = Bench(runs=request.param)
    yield made
    await made.publisher.stop(timeout_s=0)


async def test_records_of_one_loop_turn_make_one_batch_and_come_back_in_order(bench: Bench) -> None:
    bench.append(1, 2, 3)
    assert bench.log.submissions == [], "nothing is sent before the end of the turn"
    await turns()
    (submission,) = bench.log.submissions
    assert submission.values == [b"1", b"2", b"3"]
    assert bench.sink.outcomes == []
    submission.future.set_result(40)
    await turns()
    assert bench.sink.outcomes == [("appended", 1, 40), ("appended", 2, 41), ("appended", 3, 42)]
    assert bench.after_batches == 1
    assert bench.publisher.known_end("mqtt.messages", 0) == 43
    assert bench.publisher.known_end("mqtt.messages", 1) == 0


async def test_one_batch_per_partition_in_flight_and_the_next_is_built_meanwhile(bench: Bench) -> None:
    bench.append(1)
    bench.append(10, partition=1)
    await turns()
    for token in (2, 3, 4):
        bench.append(token)
        await turns()
    assert [submission.values for submission in bench.log.submissions] == [[b"1"], [b"10"]]
    bench.log.submissions[0].future.set_result(0)
    await turns()
    assert bench.log.submissions[2].values == [b"2", b"3", b"4"]
    assert bench.log.submissions[2].partition == 0


async def test_batches_are_capped_in_records_and_bytes(bench: Bench) -> None:
    bench.append(*range(BATCH_RECORDS_MAX + 1))
    bench.append(1, 2, 3, partition=1, size=BATCH_BYTES_MAX // 2)
    bench.append(4, 5, partition=2, size=BATCH_BYTES_MAX * 2)
    for _ in range(5):
        await turns()
        for submission in bench.log.open:
            submission.future.set_result(0)
    await turns()
    lengths = [(submission.partition, len(submission.records)) for submission in bench.log.submissions]
    many = [length for partition, length in lengths if partition == 0]
    assert sum(many) == BATCH_RECORDS_MAX + 1
    assert max(many) <= BATCH_RECORDS_MAX
    for submission in bench.log.submissions:
        assert len(submission.records) == 1 or sum(map(len, submission.values)) <= BATCH_BYTES_MAX
    assert sorted(entry for entry in lengths if entry[0]) == [(1, 1), (1, 1), (1, 1), (2, 1), (2, 1)]


async def test_a_definite_refusal_comes_with_its_reason(bench: Bench) -> None:
    bench.append(1, 2)
    await turns()
    bench.log.submissions[0].future.set_exception(RecordRefused("not authorised"))
    await turns()
    assert bench.sink.outcomes == [("refused", 1, "not authorised"), ("refused", 2, "not authorised")]
    assert bench.after_batches == 1
    bench.append(3)
    await turns()
    assert bench.log.submissions[1].values == [b"3"]


async def test_only_the_guilty_record_of_a_batch_is_refused(bench: Bench) -> None:
    bench.append(1, 2, 3)
    await turns()
    bench.append(4)
    bench.log.submissions[0].future.set_exception(RecordRefused("too large", divisible=True))
    for answer in (5, None, 6, 7):
        await turns()
        (submission,) = bench.log.open
        assert len(submission.records) == 1
        if answer is None:
            submission.future.set_exception(RecordRefused("too large", divisible=True))
        else:
            submission.future.set_result(answer)
    await turns()
    assert bench.sink.outcomes == [
        ("appended", 1, 5),
        ("refused", 2, "too large"),
        ("appended", 3, 6),
        ("appended", 4, 7),
    ]


async def test_after_30_s_the_outcome_is_unknown_and_the_producer_is_renewed(bench: Bench) -> None:
    """What came later from the same sink is given up, too: it must not be in the log without the earlier record."""
    other = RecordingSink()
    bench.append(1)
    await turns()
    bench.clock.now_s += 10
    bench.publisher.expire(bench.clock.now_s)  # what the tick does every 0.5 s: records are dated by it
    bench.publisher.append(destination(), b"2", (), other, 2)
    bench.append(3)
    bench.publisher.append(destination(), b"4", (), other, 4)
    bench.clock.now_s += 19.9
    bench.publisher.expire(bench.clock.now_s)
    assert bench.sink.outcomes == []
    bench.clock.now_s += 0.1
    bench.publisher.expire(bench.clock.now_s)
    assert bench.sink.outcomes == [("unknown", 1), ("unknown", 3)], "in flight for 30 s, and behind it"
    await turns()
    assert bench.log.renewals == 1
    (submission,) = bench.log.open
    assert submission.values == [b"2", b"4"], "what was given up is not sent again"
    submission.future.set_result(7)
    await turns()
    assert other.outcomes == [("appended", 2, 7), ("appended", 4, 8)]
    assert bench.publisher.statistics()["buffered_bytes"] == 0


async def test_what_was_never_sent_is_thrown_away_when_it_is_given_up(bench: Bench) -> None:
    bench.append(1)
    await turns()
    bench.append(2, 3)
    bench.publisher.append(destination(), b"qos 0", (), None, None)
    bench.clock.now_s += 30
    bench.publisher.expire(bench.clock.now_s)
    assert bench.sink.tokens("unknown") == [1, 2, 3]
    assert bench.publisher.statistics()["dropped_records"] == 1
    await turns()
    assert [submission.values for submission in bench.log.submissions] == [[b"1"]]
    assert bench.publisher.statistics()["buffered_bytes"] == 0


async def test_a_late_answer_of_a_given_up_batch_is_told_to_nobody_twice(bench: Bench) -> None:
    bench.append(1)
    await turns()
    bench.log.renewal_errors = [LogUnavailable("still away")] * 3
    bench.clock.now_s += 31
    bench.publisher.expire(bench.clock.now_s)
    bench.publisher.expire(bench.clock.now_s + 1)
    bench.log.submissions[0].future.set_result(9)
    await turns()
    assert bench.sink.outcomes == [("unknown", 1)]
    assert bench.publisher.known_end("mqtt.messages", 0) == 10


async def test_a_poisoned_producer_is_renewed_and_everything_goes_again_in_order(bench: Bench) -> None:
    bench.append(1, 2)
    bench.append(11, partition=1)
    await turns()
    bench.append(3)
    bench.log.submissions[0].future.set_exception(ProducerPoisoned("OutOfOrderSequenceNumber"))
    await turns(10)
    assert bench.log.renewals == 1
    first, other = sorted(bench.log.open, key=lambda submission: submission.partition)
    assert (first.values, other.values) == ([b"1", b"2"], [b"11"])
    first.future.set_result(0)
    other.future.set_result(0)
    await turns()
    (last,) = bench.log.open
    assert last.values == [b"3"]
    last.future.set_result(2)
    await turns()
    assert bench.sink.tokens("appended") == [1, 2, 11, 3]
    assert bench.publisher.statistics()["resent_records"] == 3


async def test_a_renewal_is_tried_until_it_works(bench: Bench) -> None:
    bench.log.renewal_errors = [LogUnavailable("no Kafka")]
    bench.append(1)
    await turns()
    bench.log.submissions[0].future.set_exception(ProducerPoisoned("poisoned"))
    await turns()
    bench.append(2)
    await bench.log.submitted(2)
    assert bench.log.submissions[1].values == [b"1"], "the resent batch goes before anything later"
    bench.log.submissions[1].future.set_result(0)
    await turns()
    assert bench.log.submissions[2].values == [b"2"]


async def test_an_unavailable_log_is_asked_again(bench: Bench) -> None:
    bench.append(1)
    await turns()
    bench.log.submissions[0].future.set_exception(LogUnavailable("no leader"))
    await turns()
    bench.append(2)
    await bench.log.submitted(2)
    assert bench.log.submissions[1].values == [b"1"]


@pytest.mark.parametrize("run", [1, 3, 20])
async def test_qos_0_drops_the_newest_when_the_buffer_is_full(run: int) -> None:
    bench = Bench(buffer_bytes_max=1_000)
    values = [b"%d" % number for number in range(20)]
    for start in range(0, 20, run):
        bench.publisher.append_run(destination(), values[start : start + run], (), None, [])
    await turns()
    sent = bench.log.submissions[0].values
    assert sent == [b"%d" % number for number in range(len(sent))], "the oldest are kept"
    assert bench.publisher.statistics()["dropped_records"] == 20 - len(sent)
    assert not bench.publisher.is_full
    bench.append(1, size=1_000)
    assert bench.publisher.is_full, "QoS 1 is taken all the same: its publishers are told to pause"
    bench.log.submissions[0].future.set_result(0)
    await turns()
    bench.log.submissions[1].future.set_result(20)
    await turns()
    assert not bench.publisher.is_full
    assert bench.sink.tokens("appended") == [1]


async def test_a_sink_that_raises_harms_nobody_else(bench: Bench) -> None:
    class Bad(RecordingSink):
        def record_appended(self, token: object, offset: int) -> None:
            raise ValueError(token)

    bench.append(1)
    bench.publisher.append(destination(), b"2", (), Bad(), 2)
    bench.append(3)
    await turns()
    bench.log.submissions[0].future.set_result(0)
    await turns()
    assert bench.sink.tokens("appended") == [1, 3]
    assert bench.publisher.statistics()["sink_errors"] == 1


async def test_append_future_is_the_offset_or_the_error(bench: Bench) -> None:
    good = bench.publisher.append_future(destination(), b"1", ())
    await turns()
    bad = bench.publisher.append_future(destination(), b"2", ())
    late = bench.publisher.append_future(destination(1), b"3", ())
    bench.log.submissions[0].future.set_result(4)
    await turns()
    assert await good == 4
    bench.log.submissions[2].future.set_exception(RecordRefused("no"))
    with pytest.raises(RecordRefused, match="no"):
        await bad
    bench.publisher.expire(bench.clock.now_s + 30)
    with pytest.raises(LogUnavailable):
        await late


async def test_stop_gives_what_is_outstanding_its_time_then_says_unknown() -> None:
    bench = Bench()
    bench.append(1, 2)
    await turns()
    bench.log.submissions[0].future.set_result(0)
    bench.append(3)
    await bench.publisher.stop(timeout_s=0.05)
    assert bench.sink.outcomes == [("appended", 1, 0), ("appended", 2, 1), ("unknown", 3)]


async def test_runs_are_never_cut_and_fill_batches_as_far_as_they_fit(bench: Bench) -> None:
    for first in range(0, BATCH_RECORDS_MAX * 2, 300):
        bench.append(*range(first, first + 300))
    for number in range(3):
        await turns()
        bench.log.submissions[number].future.set_result(0 if not number else -1)
    await turns()
    assert len(bench.log.submissions[0].records) <= BATCH_RECORDS_MAX
    assert bench.sink.tokens("appended") == list(range(len(bench.sink.outcomes)))
    assert len(bench.sink.outcomes) == 4_200
    assert not bench.publisher.statistics()["buffered_bytes"]


@pytest.mark.parametrize("longest", [1, 7])
@pytest.mark.parametrize("seed", range(20))
async def test_every_record_has_one_outcome_and_order_holds_whatever_the_log_does(seed: int, longest: int) -> None:
    """Random answers, poisonings and refusals: one outcome each, what is appended is in order without repeats."""
    chance = random.Random(seed)
    log, sink = MemoryLog(), RecordingSink()
    publisher = Publisher(log)
    total = 400
    tokens = list(range(total))
    home: dict[int, int] = {}
    while tokens:
        run = [tokens.pop(0) for _ in range(min(len(tokens), chance.randint(1, longest)))]
        home |= dict.fromkeys(run, run[0] % 3)
        publisher.append_run(destination(run[0] % 3), [b"%d" % token for token in run], (), sink, run)
        match chance.randrange(12):
            case 0:
                log.poison()
            case 1:
                log.fail_next(RecordRefused("by chance"))
            case 2:
                log.pause()
            case 3 | 4 | 5:
                log.resume()
            case 6 | 7:
                await turns(chance.randrange(4))
    log.resume()
    assert await publisher.flush(10)
    await publisher.stop()
    assert sorted(entry[1] for entry in sink.outcomes) == list(range(total))
    for partition in range(3):
        stored = [int(record.value or b"") for record in log.records("mqtt.messages", partition)]
        appended = [token for token in sink.tokens("appended") if home[token] == partition]
        assert appended == sorted(appended)
        assert stored == appended


async def test_a_partition_is_held_until_it_is_released(bench: Bench) -> None:
    bench.append(1)
    await turns()
    release = bench.publisher.hold([("mqtt.messages", 0), ("mqtt.messages", 2)])
    bench.append(2)
    bench.append(10, partition=1)
    bench.append(20, partition=2)
    bench.log.submissions[0].future.set_result(0)  # under way already: it comes back meanwhile
    await turns()
    assert [submission.values for submission in bench.log.submissions] == [[b"1"], [b"10"]]
    release()
    release()
    await turns()
    assert [submission.values for submission in bench.log.submissions[2:]] == [[b"2"], [b"20"]]
    bench.publisher.hold([("mqtt.messages", 3)])
    bench.publisher.hold([("mqtt.messages", 0)])  # not again so soon
    bench.log.submissions[2].future.set_result(1)
    await turns()
    bench.append(3)
    await turns()
    assert bench.log.submissions[-1].values == [b"3"]


async def test_who_forgets_to_release_holds_nobody_for_long(bench: Bench) -> None:
    bench.publisher.hold([("mqtt.messages", 0)])
    bench.append(1)
    async with asyncio.timeout(5):
        while not bench.log.submissions:  # noqa: ASYNC110 - the hold has its own timer
            await asyncio.sleep(0.001)
    assert bench.log.submissions[0].values == [b"1"]
