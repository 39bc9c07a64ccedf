"""The Redis queue on servers of every kind: TLS, Sentinel, full of dead letters, without persistence."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from jfast_sync.errors import UnavailableError, UnsupportedError
from jfast_sync.loop import Deadline
from jfast_sync.outcome import Bury, Done, Retry, Settlement
from jfast_sync.ports import Cancelled, DeadFilter, Selection, Settled
from jfast_sync.queues.redis import RedisQueue
from jfast_sync.queues.redis.server import Server
from tests.contract.steps import a_job, claim, ids, meanwhile, put, put_many, seconds, settle, take, take_one
from tests.leaks import wait_for_no_connection_to
from tests.servers import RedisServer, find_redis
from tests.servers.network import HOST, free_port
from tests.servers.redis_pair import RedisPair
from tests.servers.tls import TlsDoor, certificates
from tests.waiting import eventually


@pytest.fixture
def queue(redis_url: str) -> Iterator[RedisQueue]:
    made = RedisQueue(redis_url)
    made.setup()
    yield made
    made.close()


@pytest.fixture
def special() -> Iterator[Callable[..., RedisServer]]:
    """Start a server with settings of its own."""
    started: list[RedisServer] = []

    def start(**settings: str) -> RedisServer:
        started.append(find_redis(private=True, settings=settings))
        return started[-1]

    yield start
    for server in started:
        port = server.port
        server.close()
        wait_for_no_connection_to(port)


def all_ways(queue: RedisQueue) -> None:
    """Send jobs through every transition."""
    queue.setup()
    put_many(queue, 20)
    put(queue, id="late", delay=seconds(100), priority=5, queue="other")
    done, again, buried, *rest = take(queue, 10)
    outcomes = [Settlement(done, Done()), Settlement(again, Retry(0)), Settlement(buried, Bury("E: x"))]
    assert queue.settle(outcomes) == [Settled.APPLIED] * 3
    assert len(queue.extend(rest)) == 7
    assert queue.recover() == 0
    assert ids(queue.dead(DeadFilter(), limit=5)) == [buried.job.id]
    assert queue.revive_where(DeadFilter()) == 1
    assert queue.cancel("late") is Cancelled.REMOVED
    assert len([row for row in queue.jobs() if row.state != "done"]) == 19
    queue.record({"t": 1}, {})
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead) == (12, 0, 7, 0)


def test_two_queues_on_one_server_do_not_meet(redis_url: str):
    one, two = RedisQueue(redis_url, key_prefix="a:"), RedisQueue(redis_url, name="other:jobs")
    put(one, id="x")
    put(two, id="x", payload={"n": 2})
    assert take_one(one).job.payload == {}
    assert take_one(two).job.payload == {"n": 2}
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
        ({"appendonly": "no"}, "in memory only"),
        ({"appendonly": "no", "save": "3600 1"}, None),
        ({}, None),
    ],
)
def test_what_endangers_jobs_is_said_at_start_and_in_the_statistics(
    special: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture, settings: dict[str, str], warning: str | None
):
    server = special(**settings)
    queue = RedisQueue(server.url)
    with caplog.at_level(logging.WARNING, "jfast_sync"):
        queue.setup()
        queue.setup()
    warnings = queue.stats().warnings
    queue.close()
    assert len(warnings) == len(caplog.records) == (warning is not None)
    if warning is not None:
        assert warning in warnings[0]
        assert warning in caplog.text


@pytest.mark.parametrize(("version", "fits"), [("6.0.16", False), ("5.0.14", False), ("6.2.0", True), ("10.0.0", True)])
def test_an_old_server_is_refused_in_one_sentence(version: str, fits: bool):
    server = Server(version, "noeviction", append_only=True, snapshots=True)
    if fits:
        server.check_version()
    else:
        with pytest.raises(UnavailableError, match=rf"6\.2 or newer, or Valkey, is needed; this server is {version}"):
            server.check_version()


def test_tasks_cannot_be_selected(queue: RedisQueue):
    with pytest.raises(UnsupportedError, match="--queues"):
        queue.claim(1, 0, Selection(worker="w", tasks=frozenset({"t"})))


# --- ways to the server -----------------------------------------------------------------------------------------------


def test_tls_with_certificates_of_both_sides(tmp_path: Path, redis_url: str, redis_server: RedisServer):
    certificates(tmp_path)
    files = {
        "ssl_ca_certs": str(tmp_path / "ca.crt"),
        "ssl_certfile": str(tmp_path / "both.crt"),
        "ssl_keyfile": str(tmp_path / "both.key"),
    }
    with TlsDoor(tmp_path, redis_server.port) as door:
        queue, stranger = (RedisQueue(f"rediss://localhost:{door.port}/0", tls=tls) for tls in (files, {}))
        try:
            all_ways(queue)
            take(queue, 12)
            wakes(queue)
            with pytest.raises(UnavailableError):
                stranger.setup()
        finally:
            queue.close()
            stranger.close()


def test_sentinels_say_where_the_master_is_and_a_failover_is_followed(tmp_path: Path):
    with RedisPair(tmp_path) as servers:
        queue = RedisQueue(servers.url)
        try:
            eventually(lambda: _unless_away(queue.setup), 10, what="the Sentinel to know the master")
            put_many(queue, 3)
            servers.replicate()
            servers.first.kill()
            leases = eventually(lambda: _unless_away(lambda: claim(queue, 3)), 30, what="the failover")
            assert len(leases) == 3
            crowd(RedisQueue(servers.url, max_connections=4))
        finally:
            queue.close()


def test_sentinels_that_know_no_master_are_one_sentence():
    queue = RedisQueue(f"redis+sentinel://:s3cret@{HOST}:{free_port()},{HOST}:{free_port()}/jobs")
    with pytest.raises(UnavailableError) as caught:
        queue.setup()
    assert str(caught.value) == "Redis cannot be reached: the Sentinels say: No master found for 'jobs'"
    queue.close()


def _unless_away(ask: Callable[[], Any]) -> Any:
    try:
        found = ask()
    except UnavailableError:
        return None
    return True if found is None else found


def test_a_wrong_password_is_one_sentence_without_it(special: Callable[..., RedisServer]):
    server = special()
    server.configure(requirepass="right")
    queue = RedisQueue(f"redis://:s3cret@{HOST}:{server.port}/0")
    with pytest.raises(UnavailableError, match="refuses this login") as caught:
        queue.setup()
    assert "s3cret" not in str(caught.value)
    queue.close()


def test_a_user_with_the_rights_the_guide_names_is_enough(special: Callable[..., RedisServer]):
    server = special()
    groups = "+@read +@write +@scripting +@blocking +@transaction +@connection +info +time"
    server.command("ACL", "SETUSER", "jobs", "on", ">s3cret", "~app:{jfast:jobs}:*", *groups.split())
    queue = RedisQueue(f"redis://jobs:s3cret@{HOST}:{server.port}/0", key_prefix="app:", keep_done=100.0)
    all_ways(queue)
    take(queue, 12)
    wakes(queue)
    assert queue.stats().warnings == ()
    queue.close()


def test_more_threads_than_connections_wait_for_one(redis_url: str):
    crowd(RedisQueue(redis_url, max_connections=4))


def crowd(queue: RedisQueue) -> None:
    """More threads than a queue has connections."""
    with meanwhile(lambda: claim(queue, 1, 2, queues=["nobody's"])) as claimed, ThreadPoolExecutor(20) as pool:
        assert len(list(pool.map(lambda _: put(queue), range(200)))) == 200
        assert claimed.result(10) == []
    queue.close()


def test_a_forked_child_uses_connections_of_its_own(queue: RedisQueue):
    put_many(queue, 2)
    assert len(claim(queue, 1)) == 1
    queue._waiting.wait([queue.keys.wake_queue("nobody's")], 0.001)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.wake()
            assert claim(queue, 1, 10, queues=["nobody's"]) == []
            assert len(claim(queue, 1)) == 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    began = time.monotonic()
    assert claim(queue, 1, 0.2, queues=["nobody's"]) == []
    assert time.monotonic() - began >= 0.2  # the child's wake was not this process's
    assert queue.stats().running == 2


# --- waiting ----------------------------------------------------------------------------------------------------------


def wakes(queue: RedisQueue) -> None:
    """A waiting claim is ended by an enqueue, long before it would look again."""
    queue._waiting.longest = 30.0
    began = time.monotonic()
    with meanwhile(lambda: claim(queue, 1, 20)) as claimed:
        job = put(queue)
        assert ids(claimed.result(15)) == [job.id]
    assert time.monotonic() - began < 5


@pytest.mark.timed
def test_a_delayed_job_starts_within_100_milliseconds_of_its_time(queue: RedisQueue):
    late = []
    for delay in (0.3, 0.15, 1.2, 0.05):
        with meanwhile(lambda: claim(queue, 1, 10)) as claimed:
            put(queue, delay=seconds(delay))
            [lease] = claimed.result(10)
        late.append((lease.claimed_at - lease.job.available_at).total_seconds())
    assert min(late) >= 0
    assert statistics.median(late) < 0.1


def test_ten_thousand_jobs_without_a_worker_leave_few_tokens(queue: RedisQueue, redis_server: RedisServer):
    for _ in range(10):
        put_many(queue, 1000)
    assert redis_server.command("LLEN", queue.keys.wake_queue("default")) <= 64
    while leases := claim(queue, 1000):
        queue.settle([Settlement(lease, Done()) for lease in leases])
    began = time.monotonic()
    assert claim(queue, 1, 0.5) == []  # not spinning through what tokens are left
    assert time.monotonic() - began >= 0.5
    assert redis_server.command("LLEN", queue.keys.wake_queue("default")) == 0


def test_a_token_that_died_with_its_waiter_costs_a_second_at_most(redis_url: str, redis_server: RedisServer):
    waiting, other = RedisQueue(redis_url), RedisQueue(redis_url)
    with meanwhile(lambda: claim(waiting, 1, 10)) as claimed:
        eventually(lambda: redis_server.command("INFO", "clients")["blocked_clients"] >= 1, what="a blocked claim")
        began = time.monotonic()
        # What an enqueue leaves behind when a waiter dies between its token and its claim.
        put(other)
        redis_server.command("DEL", other.keys.wake_queue("default"), other.keys.wake)
        assert len(claimed.result(10)) == 1
    assert time.monotonic() - began < 2
    waiting.close()
    other.close()


@pytest.mark.timed
def test_an_idle_claim_costs_few_commands_and_next_to_no_time(redis_url: str, redis_server: RedisServer):
    queue = RedisQueue(redis_url)
    settle(queue, take_one_of(queue), Done())
    claim(queue, 1, 0.1)
    span, me = 4.0, psutil.Process()
    until = Deadline(span)
    redis_server.command("CONFIG", "RESETSTAT")
    before, cpu = redis_server.command("INFO", "stats")["total_commands_processed"], me.cpu_times()
    while not until.passed:
        assert claim(queue, 1, until.remaining(5)) == []
    after, used = redis_server.command("INFO", "stats")["total_commands_processed"], me.cpu_times()
    queue.close()
    assert (after - before) / span <= 5  # those inside the scripts too
    assert (used.user + used.system - cpu.user - cpu.system) / span < 0.02


def take_one_of(queue: RedisQueue) -> Any:
    put(queue)
    return take_one(queue)


def test_queues_that_come_and_go_leave_nothing_to_look_at(queue: RedisQueue, redis_server: RedisServer):
    for number in range(100):
        put(queue, id=str(number), queue=f"tenant-{number}")
    assert len(take(queue, 99)) == 99
    queue.recover()
    queue._load_lanes()
    assert len(queue._lanes) == 1
    assert len(redis_server.command("KEYS", "*wake:tenant*")) == 1
    put(queue, id="again", queue="tenant-7")
    assert sorted(ids(take(queue, 2))) == ["99", "again"]


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.timed
def test_dead_letters_listed_thirty_times_are_still_there_in_their_order(queue: RedisQueue):
    put_many(queue, 200)
    queue.settle([Settlement(lease, Bury("E: x")) for lease in take(queue, 200)])
    first = ids(queue.dead(DeadFilter(), limit=200))
    assert len(set(first)) == 200
    for _ in range(30):
        assert ids(queue.dead(DeadFilter(), limit=200)) == first
    assert queue.stats().dead == 200


def test_dead_letters_by_the_thousand_hold_nobody_up(queue: RedisQueue, redis_server: RedisServer):
    crowded_with_the_dead(queue, redis_server, 10_000)


@pytest.mark.long
def test_a_hundred_thousand_dead_letters_hold_nobody_up(queue: RedisQueue, redis_server: RedisServer):
    crowded_with_the_dead(queue, redis_server, 100_000)


def crowded_with_the_dead(queue: RedisQueue, server: RedisServer, count: int) -> None:
    for start in range(0, count, 1000):
        queue.enqueue([a_job(task="ab"[n % 2], id=f"{start + n:07}", payload={"x": "y" * 100}) for n in range(1000)])
        leases = take(queue, 1000)
        queue.settle([Settlement(lease, Bury("ValueError: no", "Traceback")) for lease in leases])
    server.command("CONFIG", "RESETSTAT")

    began = time.monotonic()
    page = queue.dead(DeadFilter(), limit=50)
    assert time.monotonic() - began < 1
    assert len(page) == 50
    assert len(queue.dead(DeadFilter(task="a"), limit=50, after=page[-1].job.id)) == 50
    assert queue.stats().dead == count
    assert queue.revive_where(DeadFilter(task="a")) == count // 2
    wanted = [letter.job.id for letter in queue.dead(DeadFilter(), limit=count)]
    assert len(queue.discard(wanted)) == count // 2
    assert (queue.stats().dead, queue.stats().ready) == (0, count // 2)
    # How long each held up everybody else, on average: a single one may have had to wait for the processor itself.
    spent = server.command("INFO", "commandstats")
    assert {name: used["usec_per_call"] for name, used in spent.items() if used["usec_per_call"] > 20_000} == {}


def memory_per_job(queue: RedisQueue, server: RedisServer, few: int, many: int) -> float:
    """Bytes that each job between the `few`th and the `many`th costs; both must need tables of one size."""

    def fill(count: int) -> int:
        for _ in range(count // 1000):
            queue.enqueue([a_job(task="invoice.send", payload={"x": filling}) for _ in range(1000)])
        return int(server.command("INFO", "memory")["used_memory"])

    bare = len(a_job(task="invoice.send", payload={"x": ""}).to_wire())
    filling = "y" * (277 - bare)
    assert len(a_job(task="invoice.send", payload={"x": filling}).to_wire()) == 277
    before = fill(few)
    return (fill(many - few) - before) / (many - few)


def test_a_queued_job_costs_at_most_550_bytes(special: Callable[..., RedisServer]):
    server = special(appendonly="no", save="3600 1")
    queue = RedisQueue(server.url)
    # Another allocator than the one Redis comes with rounds up more.
    limit = 550 if "jemalloc" in server.command("INFO", "memory")["mem_allocator"] else 600
    # A million entries have tables of 2^20 pointers of 8 bytes: one for the bodies, one for the order.
    tables = 2 * 8 * 2**20 / 1e6
    assert memory_per_job(queue, server, 18_000, 30_000) + tables <= limit
    queue.close()


@pytest.mark.long
def test_a_million_queued_jobs_cost_at_most_550_bytes_each_and_are_listed_at_once(special: Callable[..., RedisServer]):
    server = special(appendonly="no", save="3600 1")
    queue = RedisQueue(server.url)
    assert memory_per_job(queue, server, 0, 1_000_000) <= 550
    for look in (
        queue.stats,
        queue.jobs,
        lambda: queue.jobs(state="ready"),
        lambda: queue.dead(DeadFilter(), limit=50),
    ):
        times = []
        for _ in range(5):
            began = time.monotonic()
            look()
            times.append(time.monotonic() - began)
        assert statistics.median(times) < 0.1
    queue.close()
