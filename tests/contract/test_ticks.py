"""What every tick store does: a tick is won once, given back on failure, and time moves only forward."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from jfast_sync.job import Job
from jfast_sync.ports import Claimed, ClaimLostError, TickStore
from jfast_sync.schedules.ticks import tick_id
from tests.contract.tick_stores import TICK_STORES, PostgresTicks, SqliteTicks, SqlTicks, Ticks
from tests.waiting import eventually

TICK = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture(params=TICK_STORES, ids=lambda kind: kind.name)
def ticks(request: pytest.FixtureRequest) -> Iterator[Ticks]:
    kind: type[Ticks] = request.param
    made = kind(request.getfixturevalue(kind.url)) if kind.url else kind()
    yield made
    made.close()


@pytest.fixture(params=[kind for kind in TICK_STORES if kind.many_writers], ids=lambda kind: kind.name)
def many_writers(request: pytest.FixtureRequest) -> Iterator[Ticks]:
    made: Ticks = request.param(request.getfixturevalue(request.param.url))
    yield made
    made.close()


@pytest.fixture(params=[kind for kind in TICK_STORES if kind.transactional], ids=lambda kind: kind.name)
def sql(request: pytest.FixtureRequest) -> Iterator[SqlTicks]:
    made = request.param(request.getfixturevalue(request.param.url))
    yield made
    made.close()


def claim(store: TickStore, tick: datetime = TICK, name: str = "nightly") -> Claimed:
    with store.claiming(name, tick, by="worker-1") as claimed:
        return claimed.outcome


def test_a_tick_is_won_once(ticks: Ticks) -> None:
    store, other = ticks.open(), ticks.open()
    assert claim(store) is Claimed.WON
    assert claim(store) is Claimed.LOST
    assert claim(other) is Claimed.LOST
    assert claim(other, name="another") is Claimed.WON


def test_a_failure_inside_gives_the_tick_back(ticks: Ticks) -> None:
    store, other = ticks.open(), ticks.open()
    for _ in range(2):
        with pytest.raises(OSError, match="queue away"), store.claiming("nightly", TICK, by="worker-1") as claimed:
            assert claimed.outcome is Claimed.WON
            raise OSError("queue away")
    assert store.latest(["nightly"]) == {}
    assert claim(other) is Claimed.WON


def test_only_a_later_tick_can_be_won(ticks: Ticks) -> None:
    store = ticks.open()
    assert claim(store, TICK) is Claimed.WON
    assert claim(store, TICK - MINUTE) is Claimed.LOST
    assert claim(store, TICK + MINUTE) is Claimed.WON
    assert claim(store, TICK - MINUTE, name="another") is Claimed.WON


def test_the_latest_tick_of_each_schedule_is_known_everywhere(ticks: Ticks) -> None:
    store = ticks.open()
    assert store.latest([]) == store.latest(["nightly"]) == {}
    for tick in (TICK, TICK + MINUTE):
        claim(store, tick)
    claim(store, TICK, name='odd "name"\\ñ')
    found = ticks.open().latest(["nightly", "never", 'odd "name"\\ñ'])
    assert found == {"nightly": TICK + MINUTE, 'odd "name"\\ñ': TICK}
    assert {tick.utcoffset() for tick in found.values()} == {timedelta(0)}


def test_an_instant_is_kept_to_the_microsecond(ticks: Ticks) -> None:
    tick = TICK + timedelta(microseconds=1)
    store = ticks.open()
    assert claim(store, tick) is Claimed.WON
    assert store.latest(["nightly"]) == {"nightly": tick}
    assert claim(store, TICK) is Claimed.LOST


def test_a_name_of_the_longest_length(ticks: Ticks) -> None:
    store = ticks.open()
    assert claim(store, name="ñ" * 255) is Claimed.WON
    assert store.latest(["ñ" * 255]) == {"ñ" * 255: TICK}


def test_of_many_at_once_one_wins(ticks: Ticks) -> None:
    stores = [ticks.open() for _ in range(4)]
    start = threading.Barrier(8)

    def race(number: int) -> list[Claimed]:
        start.wait(timeout=20)
        return [claim(stores[number % 4], TICK + at * MINUTE, name=f"race-{at}") for at in range(10)]

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(race, range(8)))
    for at in range(10):
        found = [outcome[at] for outcome in outcomes]
        assert found.count(Claimed.WON) == 1
        assert set(found) <= {Claimed.WON, Claimed.LOST, Claimed.BUSY}


def test_an_open_claim_makes_others_ask_again_and_stops_no_other_schedule(ticks: Ticks) -> None:
    store, other = ticks.open(), ticks.open()
    with store.claiming("nightly", TICK, by="worker-1") as claimed:
        assert claimed.outcome is Claimed.WON
        began = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, other).result() is Claimed.BUSY
            assert time.monotonic() - began < 5
            if ticks.name != "sqlite":  # which has one writer: there every schedule asks again
                assert thread.submit(claim, other, name="another").result() is Claimed.WON
    assert claim(other) is Claimed.LOST


def test_an_open_claim_does_not_hold_up_the_schedules_next_tick(many_writers: Ticks) -> None:
    store, other = many_writers.open(), many_writers.open()
    with suppress(ClaimLostError), store.claiming("nightly", TICK, by="stopped") as claimed:
        assert claimed.outcome is Claimed.WON
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, other, TICK + MINUTE).result() is Claimed.WON
    assert store.latest(["nightly"]) == {"nightly": TICK + MINUTE}
    assert claim(other) is Claimed.LOST


def test_who_was_stopped_inside_a_claim_puts_no_job_behind_a_later_tick(many_writers: Ticks) -> None:
    store, other = many_writers.open(), many_writers.open()
    with pytest.raises(ClaimLostError), store.claiming("nightly", TICK, by="stopped") as claimed:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, other, TICK + MINUTE).result() is Claimed.WON
        claimed.detach()
    assert store.latest(["nightly"]) == {"nightly": TICK + MINUTE}


def test_a_claim_that_is_detached_counts_at_its_end_and_is_given_back_on_failure(ticks: Ticks) -> None:
    store, other = ticks.open(), ticks.open()
    with pytest.raises(OSError), store.claiming("nightly", TICK, by="worker-1") as claimed:
        claimed.detach()
        raise OSError
    assert store.latest(["nightly"]) == {}
    with store.claiming("nightly", TICK, by="worker-1") as claimed:
        claimed.detach()
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, other).result() in (Claimed.BUSY, Claimed.LOST)
            # Nobody waits for the network of another, also not where there is one writer.
            assert thread.submit(claim, other, name="another").result() is Claimed.WON
    assert claim(other) is Claimed.LOST
    assert store.latest(["nightly"]) == {"nightly": TICK}


def test_a_transaction_with_its_job_is_rolled_back_behind_a_later_tick(emptied_postgres_dsn: str) -> None:
    from jfast_sync.queues.sql import SqlQueue
    from jfast_sync.ticks.sql import SqlTickStore

    ticks = PostgresTicks(emptied_postgres_dsn)
    database = ticks.database()
    store, queue = SqlTickStore(database), SqlQueue(database, listen=False)
    with pytest.raises(ClaimLostError), store.claiming("nightly", TICK, by="stopped") as claimed:
        assert claimed.session is not None
        queue.enqueue_in(claimed.session, [Job(task="report", id=tick_id("nightly", TICK), max_attempts=3)])
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, ticks.open(), TICK + MINUTE).result() is Claimed.WON
    assert queue.find(tick_id("nightly", TICK)) is None
    queue.close()
    ticks.close()


def test_what_was_asked_meanwhile_is_won_after_a_failure(ticks: Ticks) -> None:
    store, other = ticks.open(), ticks.open()
    with pytest.raises(OSError), store.claiming("nightly", TICK, by="worker-1"):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(claim, other).result() is Claimed.BUSY
        raise OSError
    assert claim(other) is Claimed.WON


def test_the_store_tells_the_time(ticks: Ticks) -> None:
    found = ticks.open().now()
    assert found.utcoffset() == timedelta(0)
    assert abs(found - ticks.now()) < timedelta(seconds=5)


def test_pruning_keeps_what_is_young_and_each_schedules_latest(ticks: Ticks) -> None:
    store = ticks.open()
    now = store.now()
    for days in (40, 30, 20, 10, 1):
        claim(store, now - timedelta(days=days), name="daily")
    for days in (60, 31):
        claim(store, now - timedelta(days=days), name="monthly")
    store.prune(timedelta(days=7))
    assert store.prune(timedelta(days=7)) == 0
    assert store.latest(["daily", "monthly"]) == {
        "daily": now - timedelta(days=1),
        "monthly": now - timedelta(days=31),
    }
    assert claim(store, now - timedelta(days=31), name="monthly") is Claimed.LOST
    assert claim(store, now - timedelta(days=45), name="monthly") is Claimed.LOST


def test_on_redis_a_process_that_dies_inside_a_claim_delays_its_tick_and_loses_nothing(redis_url: str) -> None:
    from redis import Redis

    from jfast_sync.ticks.redis import RedisTickStore

    with Redis.from_url(redis_url) as client:
        store = RedisTickStore(client)
        open_claim = store.claiming("nightly", TICK, by="doomed")
        assert open_claim.__enter__().outcome is Claimed.WON  # and never left
        assert claim(store) is Claimed.BUSY
        [reservation] = client.keys("*claiming*")
        assert 5_000 < client.pttl(reservation) <= 15_000
        client.pexpire(reservation, 1)
        assert eventually(lambda: claim(store), until=lambda found: found is not Claimed.BUSY) is Claimed.WON
        assert client.ttl(next(iter(client.keys("*latest*")))) == -1
        # It was only paused: what it confirms now moves nothing back.
        assert claim(store, TICK + MINUTE) is Claimed.WON
        open_claim.__exit__(None, None, None)
        assert store.latest(["nightly"]) == {"nightly": TICK + MINUTE}


def test_on_redis_a_process_that_slept_over_its_reservation_enqueues_nothing(redis_url: str) -> None:
    from redis import Redis

    from jfast_sync.ticks.redis import RedisTickStore

    with Redis.from_url(redis_url) as client:
        store = RedisTickStore(client)
        for others_go_on in (False, True):
            tick = TICK + others_go_on * MINUTE
            with pytest.raises(ClaimLostError), store.claiming("nightly", tick, by="stopped") as claimed:
                [reservation] = client.keys("*claiming*")
                client.pexpire(reservation, 5_000)
                claimed.detach()
                assert client.pttl(reservation) > 5_000  # the enqueue has its time
                client.delete(reservation)
                if others_go_on:
                    assert claim(store, tick) is Claimed.WON
                claimed.detach()


def test_a_claim_and_its_job_are_one_transaction(sql: SqlTicks) -> None:
    from jfast_sync.queues.sql import SqlQueue
    from jfast_sync.ticks.sql import SqlTickStore

    database = sql.database()
    store, queue = SqlTickStore(database), SqlQueue(database, listen=False)
    job = Job(task="report", id=tick_id("nightly", TICK), max_attempts=3)
    with pytest.raises(OSError), store.claiming("nightly", TICK, by="worker-1") as claimed:
        assert claimed.session is not None and queue.shares(claimed.session)
        queue.enqueue_in(claimed.session, [job])
        raise OSError
    assert (store.latest(["nightly"]), queue.find(job.id)) == ({}, None)
    with store.claiming("nightly", TICK, by="worker-1") as claimed:
        assert claimed.session is not None
        queue.enqueue_in(claimed.session, [job])
        assert queue.find(job.id) is None  # another connection does not see it before the claim is there too
    assert store.latest(["nightly"]) == {"nightly": TICK}
    assert queue.find(job.id) is not None
    queue.close()


def test_on_sqlite_a_process_whose_clock_is_ahead_makes_no_other_miss_a_tick(sqlite_dsn: str) -> None:
    ticks = SqliteTicks(sqlite_dsn)
    ahead, other = ticks.open(), ticks.open()
    now = other.now()
    assert claim(ahead, now + 3 * SECOND) is Claimed.WON
    assert [claim(other, now + at * SECOND) for at in (1, 2, 3)] == [Claimed.WON, Claimed.WON, Claimed.LOST]
    assert [claim(ahead, now + at * SECOND) for at in (1, 2, 4)] == [Claimed.LOST, Claimed.LOST, Claimed.WON]
    assert claim(other, now - 61 * SECOND) is Claimed.LOST  # nobody's clock is that far ahead: it was missed
    ticks.close()


def test_pruning_goes_by_the_row_and_not_by_the_batch(sql: SqlTicks) -> None:
    from sqlalchemy import text

    database = sql.database()
    store = sql.open()
    now = store.now()
    stored = sql.open()._stored  # type: ignore[attr-defined]
    rows = [
        {"name": f"s{number % 3}", "tick": stored(now - timedelta(days=9, seconds=number))} for number in range(2500)
    ]
    database.transact(
        lambda connection: connection.execute(
            text("INSERT INTO jfast_schedule_ticks (name, fire_at) VALUES (:name, :tick)"), rows
        )
    )
    assert store.prune(timedelta(days=7)) == 2497
    assert sorted(store.latest(["s0", "s1", "s2"])) == ["s0", "s1", "s2"]
