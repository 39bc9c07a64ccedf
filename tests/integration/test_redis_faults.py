"""What Redis does to a queue in bad hours: wrong keys, full memory, demotion, restarts, lost replies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jfast_sync.errors import SchemaError, UnavailableError
from jfast_sync.job import Lease
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Bury, Done, Release, Retry, Settlement
from jfast_sync.ports import Cancelled, DeadFilter, Held, Settled
from jfast_sync.queues.redis import RedisQueue
from jfast_sync.queues.redis.records import packed
from tests.contract.steps import a_job, claim, extend, ids, put, put_many, seconds, settle, take, take_one
from tests.leaks import wait_for_no_connection_to
from tests.servers import Proxy, RedisServer
from tests.servers.network import HOST
from tests.servers.redis_pair import RedisPair
from tests.waiting import eventually

TAG = "{jfast:jobs}:"


def counts(queue: RedisQueue) -> tuple[int, int, int, int]:
    stats = queue.stats()
    return stats.ready, stats.delayed, stats.running, stats.dead


@pytest.fixture
def new_queue(redis_url: str) -> Iterator[Callable[..., RedisQueue]]:
    made: list[RedisQueue] = []

    def make(url: str = redis_url, **options: Any) -> RedisQueue:
        queue = RedisQueue(url, **options)
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def queue(new_queue: Callable[..., RedisQueue]) -> RedisQueue:
    made = new_queue()
    made.setup()
    return made


@pytest.fixture
def killable(killable_redis: RedisServer) -> Iterator[RedisQueue]:
    made = RedisQueue(killable_redis.url, visibility_timeout=2.0)
    made.setup()
    yield made
    made.close()
    killable_redis.start()
    killable_redis.configure(maxmemory="0", maxmemory_policy="noeviction")
    wait_for_no_connection_to(killable_redis.port)


# --- keys that are somebody else's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["jobs", "meta", "errors", "leases", "dead", "ready:0:default", "wake:default"])
def test_a_key_of_another_type_is_named_and_nothing_is_lost(queue: RedisQueue, redis_server: RedisServer, part: str):
    put_many(queue, 3)
    moved = redis_server.command("EXISTS", TAG + part)
    if moved:
        redis_server.command("RENAME", TAG + part, TAG + "aside")
    redis_server.command("SET", TAG + part, "somebody's")

    with pytest.raises(SchemaError, match=f"{part} is a string"):
        queue.setup()
    refusals: list[str] = []
    for step in (lambda: put(queue), lambda: [settle(queue, one, Retry(0, error="E: x")) for one in claim(queue)]):
        try:
            step()
        except SchemaError as error:
            refusals.append(str(error))
    assert refusals and all(part in text for text in refusals)

    redis_server.command("DEL", TAG + part)
    if moved:
        redis_server.command("RENAME", TAG + "aside", TAG + part)
    queue.setup()
    ready, delayed, running, dead = counts(queue)
    assert (ready + running in (3, 4), delayed, dead) == (True, 0, 0)
    assert len(take(queue, ready)) == ready


def test_a_newer_format_is_refused(queue: RedisQueue, redis_server: RedisServer):
    redis_server.command("HSET", TAG + "state", "format", "2")
    with pytest.raises(SchemaError, match="newer"):
        queue.setup()


def test_entries_this_library_did_not_write_become_dead_letters(queue: RedisQueue, redis_server: RedisServer):
    good = put(queue)
    body = b'{"foreign": \xff\x00}'
    redis_server.command("ZADD", TAG + "ready:0:default", "5", body)
    redis_server.command("ZADD", TAG + "ready:0:default", "inf", b"never due")
    redis_server.command("ZADD", TAG + "ready:0:default", "6", b"no-body")
    redis_server.command("ZADD", TAG + "ready:0:default", "4", b":no name")
    redis_server.command("HSET", TAG + "jobs", "plain", b"not a record")
    redis_server.command("ZADD", TAG + "ready:0:default", "-inf", "plain")
    redis_server.command("HSET", TAG + "jobs", "x" * 300, b"not a record either")
    redis_server.command("ZADD", TAG + "ready:0:default", "7", "x" * 300)

    assert ids(take(queue, 1)) == [good.id]
    assert claim(queue) == []

    letters = queue.dead(DeadFilter(), limit=10)
    assert {letter.raw for letter in letters} == {
        body,
        b":no name",
        b"no-body",
        b"not a record",
        b"not a record either",
    }
    assert all(letter.job.error for letter in letters)
    assert counts(queue)[2:] == (1, 5)
    assert len(queue.discard(ids(letters))) == 5


# --- scripts, memory, roles -------------------------------------------------------------------------------------------


def test_a_server_that_has_forgotten_its_scripts_is_given_them_again(queue: RedisQueue, redis_server: RedisServer):
    put(queue)
    redis_server.command("SCRIPT", "FLUSH")
    lease = take_one(queue)
    redis_server.command("SCRIPT", "FLUSH")
    assert extend(queue, lease) is Held.YES
    assert settle(queue, lease, Done()) is Settled.APPLIED


def test_a_full_server_refuses_new_jobs_and_lets_the_others_finish(killable: RedisQueue, killable_redis: RedisServer):
    put_many(killable, 12)
    one, two, three, four = take(killable, 4)
    used = killable_redis.command("INFO", "memory")["used_memory"]
    killable_redis.configure(maxmemory=str(used - 100_000))

    with pytest.raises(UnavailableError, match="full"):
        killable.enqueue([a_job(payload={"x": "y" * 1000})])
    assert extend(killable, one) is Held.YES
    assert settle(killable, one, Done()) is Settled.APPLIED
    outcomes = [Settlement(two, Retry(100, error="E: x")), Settlement(three, Bury("E: y")), Settlement(four, Release())]
    assert killable.settle(outcomes) == [Settled.APPLIED] * 3
    while leases := claim(killable, 3):
        assert killable.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * len(leases)
    assert counts(killable) == (0, 1, 0, 1)

    killable_redis.configure(maxmemory="0")
    put(killable)


def test_workers_start_and_recover_on_a_full_server(killable: RedisQueue, killable_redis: RedisServer):
    put_many(killable, 3)
    take(killable, 2)
    killable_redis.kill()  # so that the new run has to be noted too
    killable_redis.start()
    used = killable_redis.command("INFO", "memory")["used_memory"]
    killable_redis.configure(maxmemory=str(used - 100_000))
    fresh = RedisQueue(killable_redis.url, visibility_timeout=2.0)
    try:
        fresh.setup()
        with pytest.raises(UnavailableError, match="full"):
            put(fresh)
        lease = take_one(fresh)
        assert fresh.cancel(lease.job.id) is Cancelled.TOLD
        assert extend(fresh, lease) is Held.CANCEL
        assert settle(fresh, lease, Done()) is Settled.APPLIED
        assert eventually(fresh.recover, 10, what="the others' recovery") == 2
        assert len(take(fresh, 2)) == 2
    finally:
        fresh.close()


def test_a_demoted_server_is_unavailable_until_it_is_a_master_again(killable: RedisQueue, killable_redis: RedisServer):
    put(killable)
    killable_redis.command("REPLICAOF", "127.0.0.1", "1")
    try:
        for attempt in (lambda: put(killable), lambda: claim(killable)):
            with pytest.raises(UnavailableError, match="replica now"):
                attempt()
    finally:
        killable_redis.command("REPLICAOF", "NO", "ONE")
    take_one(killable)


@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_a_killed_server_has_lost_nothing_and_the_same_queue_goes_on(
    killable: RedisQueue, killable_redis: RedisServer, appendfsync: str
):
    killable_redis.configure(appendfsync=appendfsync)
    put_many(killable, 10)
    late = put(killable, delay=seconds(1))
    held = take_one(killable)

    killable_redis.kill()
    with pytest.raises(UnavailableError):
        killable.stats()
    killable_redis.start()

    assert extend(killable, held) is Held.YES
    assert settle(killable, held, Done()) is Settled.APPLIED
    leases = take(killable, 10)
    assert late.id in ids(leases)
    assert counts(killable) == (0, 0, 10, 0)


def nobody_takes_over_at_once(holder: RedisQueue, held: Lease, orphan: Lease, url: str) -> None:
    """A process that has seen no outage leaves lapsed leases alone, so that a holder can come back."""
    fresh = RedisQueue(url, visibility_timeout=2.0)
    try:
        back = Deadline(1.0)
        while not back.passed:
            assert fresh.recover() == 0
        assert extend(holder, held) is Held.YES
        assert eventually(fresh.recover, 5, what="the orphan's recovery") == 1
        assert ids(take(fresh, 1)) == [orphan.job.id]
        assert settle(holder, held, Done()) is Settled.APPLIED
    finally:
        fresh.close()


def outlast_a_lease() -> None:
    """Let leases of two seconds run out in an outage."""
    down = Deadline(2.2)
    while not down.passed:
        time.sleep(0.05)  # the outage itself


def test_after_a_restart_holders_get_a_lease_to_come_back(killable: RedisQueue, killable_redis: RedisServer):
    put_many(killable, 2)
    held, orphan = take(killable, 2)
    killable_redis.kill()
    outlast_a_lease()
    killable_redis.start()
    nobody_takes_over_at_once(killable, held, orphan, killable_redis.url)


def test_after_a_failover_holders_get_a_lease_to_come_back(proxy: Callable[[int], Proxy]):
    with RedisPair() as servers:
        network = proxy(servers.first.port)
        holder = RedisQueue(network.dsn(servers.first.url), visibility_timeout=2.0)
        try:
            holder.setup()
            put_many(holder, 2)
            held, orphan = take(holder, 2)
            servers.replicate()
            servers.first.kill()
            outlast_a_lease()
            servers.promote()
            network.target = (HOST, servers.second.port)
            nobody_takes_over_at_once(holder, held, orphan, servers.second.url)
        finally:
            holder.close()


def test_a_process_that_was_cut_off_takes_nothing_over_at_once(
    proxy: Callable[[int], Proxy], redis_server: RedisServer, new_queue: Callable[..., RedisQueue]
):
    network = proxy(redis_server.port)
    holder = new_queue(visibility_timeout=2.0)
    other = new_queue(network.dsn(redis_server.url), visibility_timeout=2.0)
    put_many(holder, 2)
    held, orphan = take(holder, 2)
    other.setup()
    network.refuse()
    network.cut()
    with pytest.raises(UnavailableError):
        other.recover()
    outlast_a_lease()
    network.restore()
    # Its first word to a server that answers again is the look for lapsed leases.
    assert other.recover() == 0
    assert settle(holder, held, Done()) is Settled.APPLIED
    assert eventually(other.recover, 7, what="the orphan's recovery") == 1
    assert ids(take(other, 1)) == [orphan.job.id]


def test_a_waiting_claim_outlives_a_restart(killable: RedisQueue, killable_redis: RedisServer):
    assert claim(killable, wait=0.05) == []
    killable_redis.restart()
    put(killable)
    take_one(killable)


@pytest.mark.long
def test_a_server_that_is_stopped_for_a_while_is_waited_for(killable: RedisQueue, killable_redis: RedisServer):
    put(killable)
    os.kill(killable_redis.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    try:
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            claim(killable)
        assert time.monotonic() - began < 9
    finally:
        os.kill(killable_redis.pid, signal.SIGCONT)  # type: ignore[attr-defined]
    # The server read the claim when it woke, and did it; the next one is given what that one took.
    assert len(take(killable, 1)) == 1
    assert counts(killable)[:3] == (0, 0, 1)


# --- lost replies -----------------------------------------------------------------------------------------------------


@pytest.fixture
def network(proxy: Callable[[int], Proxy], redis_server: RedisServer) -> Proxy:
    return proxy(redis_server.port)


@pytest.fixture
def far(new_queue: Callable[..., RedisQueue], network: Proxy, redis_url: str) -> RedisQueue:
    made = new_queue(network.dsn(redis_url))
    made.setup()
    put(made)
    settle(made, take_one(made), Done())  # the server has the scripts now: what is lost is never the answer NOSCRIPT
    return made


def test_an_enqueue_whose_reply_was_lost_is_stored_once_and_says_so(far: RedisQueue, queue: RedisQueue, network: Proxy):
    put(far)
    job = a_job()
    network.swallow_next_reply(after=packed(job.id))
    assert far.enqueue([job]) == [job.id]
    assert network.swallowed == 1
    assert counts(queue)[0] == 2


def test_a_repeated_enqueue_does_not_store_what_has_run_meanwhile(
    far: RedisQueue, queue: RedisQueue, network: Proxy, monkeypatch: pytest.MonkeyPatch
):
    job = a_job()
    repeat = far._repeat

    def run_first(run: Callable[[bool], Any]) -> Any:
        def delayed(again: bool) -> Any:
            if again:
                assert settle(queue, take_one(queue), Done()) is Settled.APPLIED
            return run(again)

        return repeat(delayed)

    monkeypatch.setattr(far, "_repeat", run_first)
    network.swallow_next_reply(after=packed(job.id))
    assert far.enqueue([job]) == [job.id]
    assert network.swallowed == 1
    assert counts(queue) == (0, 0, 0, 0)


def test_a_claim_whose_reply_was_lost_gets_what_it_took(far: RedisQueue, queue: RedisQueue, network: Proxy):
    jobs = put_many(queue, 5)
    far.stats()  # so that it knows the lanes
    network.swallow_next_reply(after=b"somebody")
    leases = claim(far, 3, worker="somebody")
    assert network.swallowed == 1
    assert ids(leases) == [job.id for job in jobs[:3]]
    assert counts(queue)[:3] == (2, 0, 3)
    assert [lease.job.attempts for lease in leases] == [1, 1, 1]
    assert far.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * 3


def test_a_claim_lost_in_an_outage_is_found_by_the_next_and_the_rest_goes_back(
    far: RedisQueue, queue: RedisQueue, network: Proxy
):
    jobs = put_many(queue, 5)
    far.stats()
    network.swallow_next_reply(after=b"somebody")
    repeat = far._repeat
    far._repeat = lambda run: run(False)  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        claim(far, 4, worker="somebody")
    far._repeat = repeat  # type: ignore[method-assign]
    assert counts(queue)[:3] == (1, 0, 4)
    assert queue.cancel(jobs[3].id) is Cancelled.TOLD

    leases = claim(far, 2, worker="somebody")
    assert ids(leases) == [jobs[number].id for number in (0, 1, 3)]  # the cancelled one must not wait again
    assert far.extend(leases) == [Held.YES, Held.YES, Held.CANCEL]
    assert counts(queue)[:3] == (2, 0, 3)
    rest = take(queue, 2)
    assert {lease.job.attempts for lease in rest} == {1}


def test_a_settlement_whose_reply_was_lost_is_known_to_be_written(far: RedisQueue, queue: RedisQueue, network: Proxy):
    put_many(far, 2)
    one, two = take(far, 2)
    network.swallow_next_reply(after=one.token.encode())
    assert far.settle([Settlement(one, Done()), Settlement(two, Retry(0))]) == [Settled.APPLIED] * 2
    assert network.swallowed == 1
    assert counts(queue)[:3] == (1, 0, 0)


def test_a_settlement_lost_in_an_outage_is_known_to_be_written_afterwards(
    far: RedisQueue, queue: RedisQueue, network: Proxy
):
    put_many(far, 3)
    leases = take(far, 3)
    network.swallow_next_reply(after=leases[0].token.encode())
    repeat = far._repeat
    far._repeat = lambda run: run(False)  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        far.settle([Settlement(lease, Done()) for lease in leases[:2]])
    far._repeat = repeat  # type: ignore[method-assign]
    assert counts(queue)[2] == 1

    assert far.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.APPLIED] * 3
    assert far.settle([Settlement(lease, Done()) for lease in leases]) == [Settled.REFUSED] * 3


def test_another_threads_settlement_does_not_take_the_answer_to_a_lost_one(
    far: RedisQueue, queue: RedisQueue, network: Proxy
):
    put_many(far, 2)
    mine, other = take(far, 2)
    network.swallow_next_reply(after=mine.token.encode())
    repeat = far._repeat
    far._repeat = lambda run: run(False)  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        far.settle([Settlement(mine, Done())])
    far._repeat = repeat  # type: ignore[method-assign]

    assert far.settle([Settlement(other, Done())]) == [Settled.APPLIED]
    assert far.settle([Settlement(mine, Done())]) == [Settled.APPLIED]
    assert far.settle([Settlement(mine, Done())]) == [Settled.REFUSED]


def test_a_dead_letter_that_cannot_be_revived_does_not_hold_up_revive_where(
    queue: RedisQueue, redis_server: RedisServer
):
    redis_server.command("HSET", TAG + "jobs", ":zz", b"1 0 3 0:default\n{}")
    redis_server.command("ZADD", TAG + "dead", "5", ":zz")
    good = put(queue)
    settle(queue, take(queue, 1)[0], Bury("no"))
    assert queue.revive_where(DeadFilter()) == 1
    assert ids(take(queue, 1)) == [good.id]


def test_a_batch_in_parts_that_fails_midway_is_answered_in_full_the_next_time(
    far: RedisQueue, queue: RedisQueue, network: Proxy
):
    put_many(far, 2500)
    leases = take(far, 2500)
    batch = [Settlement(lease, Done()) for lease in leases]
    network.swallow_next_reply(after=leases[1500].token.encode())
    repeat = far._repeat
    far._repeat = lambda run: run(False)  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        far.settle(batch)
    far._repeat = repeat  # type: ignore[method-assign]
    assert counts(queue)[2] == 500
    assert far.settle(batch) == [Settled.APPLIED] * 2500
    assert counts(queue)[2] == 0


def test_connections_that_are_cut_all_the_time_lose_and_double_nothing(far: RedisQueue, network: Proxy):
    total, done, accepted = 300, list[str](), list[str]()
    until = Deadline(60)
    number = 0
    while len(done) < total and not until.passed:
        number += 1
        if number % 3 == 0:
            network.cut()
        try:
            if len(accepted) < total:
                job = a_job(id=f"job-{len(accepted)}")
                far.enqueue([job])
                accepted.append(job.id)
            leases = claim(far, 2)
            for lease in leases:
                while True:
                    try:
                        assert settle(far, lease, Done()) is Settled.APPLIED
                        break
                    except UnavailableError:
                        pass
                done.append(lease.job.id)
        except UnavailableError:
            pass
    assert sorted(done) == sorted(accepted)
    assert counts(far) == (0, 0, 0, 0)


def test_redis_py_repeats_nothing_by_itself(far: RedisQueue, network: Proxy):
    client = far._redis
    assert client.connection_pool.connection_kwargs["retry"]._retries == 0
    network.swallow_next_reply(after=b"INCR")
    with pytest.raises(redis.ConnectionError):
        client.incr("counter")
    assert client.get("counter") == b"1"
