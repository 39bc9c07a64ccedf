"""Worker processes on a Redis queue: killed, stopped, cut off, and a server that dies under them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.loop import Deadline
from tests.faults.load import assert_nothing_lost, load
from tests.process.redis_project import TAG, RedisProject
from tests.process.rounds import describe, wake_up_latencies
from tests.process.test_death import restart_until_settled
from tests.process.test_stop import stop_at_random_moments
from tests.servers import Proxy, RedisServer, find_redis
from tests.servers.redis_pair import RedisPair
from tests.waiting import eventually


@pytest.fixture
def new_project(
    tmp_path: Path, redis_url: str, sqlite_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RedisProject]]:
    """Make a project: the queue in Redis, effects in SQLite unless told else; its workers are killed after the test.

    Handlers that write and then stay run beside each other on PostgreSQL only: SQLite has one writer.
    """
    for name in ("proxy", "postgres_dsn", "killable_redis"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    with ExitStack() as stack:

        def make(url: str = redis_url, dsn: str = f"sqlite:///{sqlite_path}", **options: Any) -> RedisProject:
            project = RedisProject(tmp_path / "project", dsn, url, **options)
            stack.callback(project.close)
            return project

        yield make


# --- workers that die -------------------------------------------------------------------------------------------------


def test_what_a_killed_worker_held_is_visible_and_finished_by_another(
    new_project: Callable[..., RedisProject], postgres_dsn: str
):
    project = new_project(dsn=postgres_dsn, visibility_timeout=2)
    jobs = project.enqueue("blocked_first", count=6)
    victim = project.worker("--threads", "6")
    project.wait_for("start", jobs)
    rows = project.jfast.queue.inspect.jobs(state="running")
    assert sorted(row.job.id for row in rows) == sorted(jobs)
    assert len({row.worker for row in rows}) == 1
    other = project.worker("--threads", "6")
    [warm] = project.enqueue("quick")
    project.wait_until_done([warm])

    victim.kill()
    project.wait_until_done(jobs, 10)

    project.assert_once(jobs)
    assert set(project.starts().values()) == {1, 2}
    assert {event.attempts for event in project.events("end") if event.job_id in jobs} == {2}
    assert other.running


def test_a_job_that_kills_its_worker_ends_and_its_neighbours_are_done(
    new_project: Callable[..., RedisProject], postgres_dsn: str
):
    project = new_project(dsn=postgres_dsn, visibility_timeout=1, max_attempts=3)
    neighbours = project.enqueue("blocked_first", count=3)
    [bomb] = project.enqueue("bomb", {"gate": "all"})
    first = project.worker("--threads", "4")
    project.wait_for("start", [*neighbours, bomb])
    project.open_gate("all")
    first.wait(10)

    restart_until_settled(project, bomb, "--threads", "4")

    project.wait_until_done(neighbours)
    row = project.wait_until_dead(bomb)
    assert project.starts()[bomb] == 3
    assert (row.attempts, "worker died" in (row.error or "").lower()) == (3, True)
    project.assert_once(neighbours)
    [letter] = project.jfast.queue.dead_letters.dead(_all(), limit=10)
    assert letter.job.id == bomb


def _all() -> Any:
    from jfast_sync.ports import DeadFilter

    return DeadFilter()


def test_a_job_longer_than_its_lease_runs_once(new_project: Callable[..., RedisProject]):
    project = new_project(visibility_timeout=1)
    [job] = project.enqueue("plain", {"seconds": 2.5})
    workers = [project.worker() for _ in range(2)]
    project.wait_until_done([job])
    assert project.starts()[job] == 1
    assert [line for worker in workers for line in worker.trouble()] == []


@pytest.mark.timed
def test_a_job_that_fails_with_one_backoff_runs_as_often_as_allowed(new_project: Callable[..., RedisProject]):
    project = new_project(max_attempts=5, backoff_base=0.5, backoff_cap=0.5)
    [job] = project.enqueue("fails")
    project.worker()
    row = project.wait_until_dead(job)
    starts = [event.at for event in project.events("start")]
    assert (row.attempts, len(starts)) == (5, 5)
    pauses = [(later - earlier) / 1e9 for earlier, later in pairwise(starts)]
    assert min(pauses) >= 0.5
    assert statistics.median(pauses) < 0.6


# --- deploys ----------------------------------------------------------------------------------------------------------


def test_a_drain_gives_back_what_it_held_with_its_attempt(new_project: Callable[..., RedisProject], postgres_dsn: str):
    project = new_project(dsn=postgres_dsn, max_attempts=1)
    [long] = project.enqueue("blocked_first")
    [short] = project.enqueue("quick", {"seconds": 0.5})
    worker = project.worker("--threads", "2", "--grace", "1")
    project.wait_for("start", [long, short])
    began = worker.terminate()
    assert worker.wait(6) == 0
    assert time.monotonic() - began <= 5
    row = project.store.job(long)
    assert row is not None and (row.status, row.attempts) == ("pending", 0)
    assert [line for line in worker.trouble() if "it was released" not in line] == []

    project.drain()
    project.assert_once([long, short])


def test_sigterm_at_random_moments_loses_nothing_and_repeats_nothing(new_project: Callable[..., RedisProject]):
    stop_at_random_moments(new_project(), runs=2, seed=3)


@pytest.mark.long
def test_twenty_restarts_in_a_row_move_no_job_towards_the_dead_letters(new_project: Callable[..., RedisProject]):
    project = new_project(max_attempts=3)
    [long] = project.enqueue("blocked")
    for number in range(1, 21):
        worker = project.worker("--threads", "2", "--grace", "0")
        eventually(lambda: project.starts()[long], 20, until=number.__eq__, what=f"start {number}")
        worker.terminate()
        assert worker.wait(6) == 0
        row = project.store.job(long)
        assert row is not None and (row.status, row.attempts) == ("pending", 0)


# --- the server and the way to it -------------------------------------------------------------------------------------


def cut_connections(project: RedisProject, network: Proxy, *, jobs: int, seconds: float) -> None:
    """Two workers on a way that is cut every half second for a while: all done, each effect once, nobody stuck."""
    ids = project.enqueue("quick", count=jobs)
    workers = [project.worker("--threads", "4") for _ in range(2)]
    eventually(lambda: len(project.starts()), 30, what="a first start")
    until = Deadline(seconds)
    while not until.passed:
        network.cut()
        time.sleep(min(0.5, until.remaining()))  # the rhythm of the fault
    eventually(project.store.unfinished, 180, until=lambda left: left == 0, what="all jobs done", interval=0.2)
    project.assert_once(ids)
    assert len(project.store.effects()) == jobs
    assert project.store.jobs() == []
    for worker in workers:
        assert worker.running
        worker.terminate()
    assert [worker.wait(15) for worker in workers] == [0, 0]


def test_connections_cut_twice_a_second(
    new_project: Callable[..., RedisProject], proxy: Callable[[int], Proxy], redis_server: RedisServer
):
    network = proxy(redis_server.port)
    project = new_project(network.dsn(redis_server.url), enqueue_url=redis_server.url, visibility_timeout=3)
    cut_connections(project, network, jobs=400, seconds=3)


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_ten_thousand_jobs_with_connections_cut_twice_a_second(
    new_project: Callable[..., RedisProject],
    proxy: Callable[[int], Proxy],
    redis_server: RedisServer,
    sqlite_dsn: str,
    postgres_dsn: str,
    database: str,
):
    network = proxy(redis_server.port)
    dsn = sqlite_dsn if database == "sqlite" else postgres_dsn
    project = new_project(network.dsn(redis_server.url), dsn, enqueue_url=redis_server.url, visibility_timeout=5)
    cut_connections(project, network, jobs=10_000, seconds=10)


def test_a_lost_reply_to_an_enqueue_and_to_a_claim_is_one_job_with_one_effect(
    new_project: Callable[..., RedisProject], proxy: Callable[[int], Proxy], redis_server: RedisServer
):
    network = proxy(redis_server.port)
    project = new_project(network.dsn(redis_server.url), visibility_timeout=5)
    worker = project.worker()
    name = worker.wait_for_log(r"worker \S+ starts").split()[1]
    [warm] = project.enqueue("quick")  # the server knows the scripts now, and the worker waits
    project.wait_until_done([warm])

    network.swallow_next_reply(after=name.encode())  # a claim's, not a wait's
    [claimed] = project.enqueue("quick")
    project.wait_until_done([claimed])
    assert network.swallowed == 1
    network.swallow_next_reply(after=b"work.quick")
    [enqueued] = project.enqueue("quick")
    project.wait_until_done([enqueued])

    assert network.swallowed == 2
    assert project.starts() == {warm: 1, claimed: 1, enqueued: 1}
    project.assert_once([claimed, enqueued])
    assert redis_server.command("EXISTS", TAG + "leases", TAG + "jobs", TAG + "meta") == 0


def kill_the_server(project: RedisProject, server: RedisServer, *, rounds: int) -> None:
    """kill -9 and restart under load: every accepted job is done, its effect once."""
    workers = [project.worker("--threads", "4") for _ in range(2)]
    with load(project, 0.0) as running:
        for _ in range(rounds):
            running.wait_for_more(60)
            server.kill()
            server.start()
        running.wait_for_more(60)
    assert_nothing_lost(project, workers, running.ids)
    assert project.store.jobs() == []


@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_a_server_killed_under_load_loses_nothing(
    new_project: Callable[..., RedisProject], killable_redis: RedisServer, appendfsync: str
):
    killable_redis.configure(appendfsync=appendfsync)
    kill_the_server(new_project(killable_redis.url, visibility_timeout=5), killable_redis, rounds=1)


@pytest.fixture
def snapshots() -> Iterator[RedisServer]:
    """A server that keeps what it had at its latest snapshot, and no more."""
    server = find_redis(private=True, settings={"appendonly": "no", "save": "3600 1"})
    yield server
    server.close()


def test_a_server_that_went_back_to_a_snapshot_runs_what_that_had_and_doubles_no_effect(
    new_project: Callable[..., RedisProject], snapshots: RedisServer
):
    project = new_project(snapshots.url, visibility_timeout=2)
    workers = [project.worker("--threads", "4") for _ in range(2)]
    with load(project, 0.0) as running:
        running.wait_for_more(40)
        saved = list(running.ids)  # accepted, so they are in the snapshot: waiting, running, or done with their effect
        snapshots.command("SAVE")
        running.wait_for_more(40)
        snapshots.kill()  # the server forgets what was enqueued, claimed and settled since
        snapshots.start()
        running.wait_for_more(40)
    late = running.ids[-20:]
    eventually(project.store.unfinished, 60, until=lambda left: left == 0, what="all jobs done", interval=0.1)
    assert [worker.name for worker in workers if not worker.running] == []
    project.assert_once([*saved, *late])
    assert set(project.store.effects().values()) == {1}
    assert project.store.jobs() == []


@pytest.mark.long
@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_a_server_killed_ten_times_under_load_loses_nothing(
    new_project: Callable[..., RedisProject], killable_redis: RedisServer, appendfsync: str
):
    killable_redis.configure(appendfsync=appendfsync)
    kill_the_server(new_project(killable_redis.url, visibility_timeout=5), killable_redis, rounds=10)


def restart_under_a_job(project: RedisProject, server: RedisServer, *, restarts: int) -> None:
    """A job that is running while the server goes and comes: its worker keeps it, and it runs once."""
    [job] = project.enqueue("plain", {"gate": "open"})
    worker = project.worker()
    project.wait_for("start", [job])
    for number in range(restarts):
        server.restart() if number % 2 else (server.kill(), server.start())
        [probe] = project.enqueue("quick")
        project.wait_until_done([probe])
    project.open_gate("open")
    project.wait_until_done([job])
    assert project.starts()[job] == 1
    assert worker.running


def test_a_running_job_outlives_restarts_of_the_server(
    new_project: Callable[..., RedisProject], killable_redis: RedisServer
):
    restart_under_a_job(new_project(killable_redis.url, max_attempts=3), killable_redis, restarts=3)


@pytest.mark.long
def test_a_running_job_outlives_twenty_restarts_of_the_server(
    new_project: Callable[..., RedisProject], killable_redis: RedisServer
):
    project = new_project(killable_redis.url, max_attempts=3, visibility_timeout=5)
    restart_under_a_job(project, killable_redis, restarts=20)


def test_a_server_that_is_away_at_the_start_needs_no_restart_of_the_worker(
    new_project: Callable[..., RedisProject], killable_redis: RedisServer
):
    project = new_project(killable_redis.url)
    [job] = project.enqueue("quick")
    killable_redis.stop()
    worker = project.worker()
    worker.wait_for_log("Redis cannot be reached")
    killable_redis.start()
    project.wait_until_done([job])
    project.assert_once([job])
    assert worker.running


def fail_over(project: RedisProject, servers: RedisPair, *, jobs: int) -> None:
    """The master dies for longer than a lease; what its replica had is done once, and who lives keeps what it runs."""
    [long] = project.enqueue("plain", {"gate": "open"})
    ids = project.enqueue("quick", {"seconds": 0.02}, count=jobs)
    workers = [project.worker("--threads", "4") for _ in range(2)]
    eventually(
        lambda: len(project.starts()), 30, until=lambda started: started > jobs / 4, what="a quarter of the jobs"
    )
    servers.replicate()
    servers.first.kill()
    workers.append(project.worker("--threads", "4"))  # one that sees the new master only
    # Before that, the Sentinel has ended every connection to the new master.
    eventually(lambda: servers.master() == servers.second.port, 30, what="the failover")
    project.look_at(servers.second.url)
    eventually(project.store.unfinished, 60, until=lambda left: left == 1, what="all but one", interval=0.1)
    project.open_gate("open")
    project.wait_until_done([long], 30)
    assert project.starts()[long] == 1
    project.assert_once(ids)
    assert [worker.name for worker in workers if not worker.running] == []


def test_a_failover_for_longer_than_a_lease_doubles_and_loses_nothing(
    new_project: Callable[..., RedisProject], tmp_path: Path
):
    with RedisPair(tmp_path, down_after=2.5) as servers:
        eventually(lambda: servers.master() == servers.first.port, what="the Sentinel to know the master")
        project = new_project(servers.url, enqueue_url=servers.first.url, visibility_timeout=2)
        fail_over(project, servers, jobs=120)


# --- idle -------------------------------------------------------------------------------------------------------------


@pytest.mark.timed
def test_an_idle_worker_starts_a_job_within_milliseconds(new_project: Callable[..., RedisProject]):
    project = new_project()
    project.worker()
    latencies = wake_up_latencies(project, 30)
    print(describe(latencies))
    assert statistics.median(latencies) < 0.02


@pytest.mark.long
def test_two_hundred_jobs_on_an_idle_worker_start_within_five_milliseconds(new_project: Callable[..., RedisProject]):
    project = new_project()
    project.worker()
    latencies = wake_up_latencies(project, 200)
    print(describe(latencies))
    assert statistics.median(latencies) < 0.005


def measure_idle(project: RedisProject, server: RedisServer, seconds: float) -> tuple[float, float]:
    """Percent of a core and commands a second that an idle worker costs, those inside its scripts included."""
    worker = project.worker()
    [warm] = project.enqueue("quick")
    project.wait_until_done([warm])
    eventually(lambda: _used(worker, 0.5), 20, until=lambda used: used < 0.05, what="the worker to be idle")
    cpu, commands, began = worker.cpu_seconds(), _commands(server), time.monotonic()
    time.sleep(seconds)  # the stretch of time that is measured
    took = time.monotonic() - began
    return 100 * (worker.cpu_seconds() - cpu) / took, (_commands(server) - commands) / took


def _used(worker: Any, span: float) -> float:
    before: float = worker.cpu_seconds()
    time.sleep(span)  # the stretch of time that is measured
    return worker.cpu_seconds() - before


def _commands(server: RedisServer) -> int:
    return int(server.command("INFO", "stats")["total_commands_processed"])


@pytest.mark.timed
def test_an_idle_worker_costs_next_to_nothing(new_project: Callable[..., RedisProject], redis_server: RedisServer):
    cpu, commands = measure_idle(new_project(), redis_server, 3)
    print(f"idle: {cpu:.2f} % of a core, {commands:.1f} commands/s")
    assert cpu < 1.5  # a shared machine's noise; the long round holds it to 0.5
    assert commands < 12  # one look for lapsed leases may fall into these seconds


@pytest.mark.long
def test_an_idle_worker_costs_less_than_half_a_percent(
    new_project: Callable[..., RedisProject], redis_server: RedisServer
):
    cpu, commands = measure_idle(new_project(), redis_server, 30)
    print(f"idle: {cpu:.2f} % of a core, {commands:.1f} commands/s")
    assert cpu < 0.5
    assert commands < 5
