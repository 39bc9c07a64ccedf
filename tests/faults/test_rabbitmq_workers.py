"""Worker processes on RabbitMQ: killed, drained, cut off; and a broker that restarts under them."""

from __future__ import annotations

import faulthandler
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jfast_sync.errors import UnavailableError
from jfast_sync.loop import Deadline
from jfast_sync.ports import DeadFilter
from tests.faults.rabbitmq_load import Publishers
from tests.process.rabbitmq_project import RabbitProject
from tests.process.workers import WorkerProcess
from tests.servers import Proxy
from tests.servers.rabbitmq import SETTLING_SECONDS, RabbitServer
from tests.waiting import eventually


@pytest.fixture
def new_project(
    tmp_path: Path, sqlite_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RabbitProject]]:
    """Make a project: the queue in RabbitMQ, effects in SQLite unless told else; its workers are killed after."""
    for name in ("proxy", "postgres_dsn", "rabbitmq_url", "killable_rabbitmq"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    with ExitStack() as stack:

        def make(server: RabbitServer, dsn: str = f"sqlite:///{sqlite_path}", **options: Any) -> RabbitProject:
            fields = {"url": server.url, "name": server.new_name(), **options}
            project = RabbitProject(tmp_path / "project", dsn, **fields)
            stack.callback(project.close)
            return project

        yield make


def restart_until(project: RabbitProject, over: Callable[[], bool], *arguments: str, timeout: float = 90.0) -> None:
    """Start a worker again whenever it has died, until it is over."""
    deadline = Deadline(timeout)
    while not over():
        assert not deadline.passed, project.events()
        worker = project.worker(*arguments)
        eventually(lambda: over() or not worker.running, deadline.remaining(), what="the end", interval=0.05)  # noqa: B023
        if worker.running:
            worker.kill()


def dead_ids(project: RabbitProject) -> list[str]:
    queue: Any = project.jfast.queue.backend
    return [letter.job.id for letter in queue.dead(DeadFilter(), limit=100)]


# --- workers that die ---


def test_what_a_killed_worker_held_is_run_by_another(
    new_project: Callable[..., RabbitProject], rabbitmq_server: RabbitServer, rabbitmq_url: str, postgres_dsn: str
) -> None:
    project = new_project(rabbitmq_server, dsn=postgres_dsn)
    jobs = project.enqueue("blocked_first", count=4)
    victim = project.worker("--threads", "4")
    project.wait_for("start", jobs)
    victim.kill()
    project.worker("--threads", "4")
    project.wait_for_effects(jobs)
    assert set(project.starts().values()) == {2}
    assert {event.attempts for event in project.events("end")} == {2}
    project.assert_effects_once(jobs)


@pytest.mark.parametrize("queue_type", ["quorum", pytest.param("classic", marks=pytest.mark.long)])
def test_a_bomb_is_started_as_often_as_allowed_and_its_neighbours_are_done(
    new_project: Callable[..., RabbitProject], rabbitmq_server: RabbitServer, rabbitmq_url: str, queue_type: str
) -> None:
    project = new_project(rabbitmq_server, rabbitmq_queue_type=queue_type)
    [bomb] = project.enqueue("bomb", {"signal": "SIGKILL"}, max_attempts=3)
    neighbours = project.enqueue("quick", {"seconds": 0.5}, count=3, max_attempts=3)
    restart_until(
        project,
        lambda: dead_ids(project) == [bomb] and set(neighbours) <= set(project.store.effects()),
        "--threads", "4",
    )  # fmt: skip
    assert project.starts()[bomb] == 3
    project.assert_effects_once(neighbours)
    queue: Any = project.jfast.queue.backend
    letter = queue.find_dead(bomb)
    assert "worker died" in letter.job.error
    assert "SIGKILL" in letter.job.error
    assert letter.job.attempts == 3


@pytest.mark.parametrize("restarts", [3, pytest.param(20, marks=pytest.mark.long)])
def test_drains_refund(
    new_project: Callable[..., RabbitProject], rabbitmq_server: RabbitServer, rabbitmq_url: str, restarts: int
) -> None:
    project = new_project(rabbitmq_server)
    jobs = project.enqueue("waits_for_stop", count=3, max_attempts=3)
    for number in range(1, restarts + 1):
        worker = project.worker("--threads", "3", "--grace", "0.2")
        eventually(
            lambda: len(project.events("start")), 30,
            until=lambda count: count >= 3 * number, what=f"start {number} of three jobs",  # noqa: B023
        )  # fmt: skip
        worker.terminate()
        assert worker.wait(15) == 0, worker.log
    assert {event.attempts for event in project.events("start")} == {1}
    assert set(project.starts().values()) == {restarts}
    assert dead_ids(project) == []
    assert eventually(lambda: project.jfast.queue.stats().ready, until=lambda ready: ready == len(jobs)) == 3


# --- connections and brokers that go away ---


@pytest.mark.parametrize(("jobs", "seconds"), [(400, 2.0), pytest.param(10_000, 10.0, marks=pytest.mark.long)])
def test_cut_connections_double_no_effect(
    new_project: Callable[..., RabbitProject], rabbitmq_server: RabbitServer, rabbitmq_url: str, postgres_dsn: str,
    proxy: Callable[[int], Proxy], jobs: int, seconds: float,
) -> None:  # fmt: skip
    network = proxy(rabbitmq_server.port)
    project = new_project(
        rabbitmq_server, dsn=postgres_dsn, url=rabbitmq_server.url_by_port(network.port), enqueue_url=rabbitmq_url
    )
    ids: list[str] = []
    while len(ids) < jobs:
        ids += project.enqueue("quick", {"seconds": 0.005}, count=200, max_attempts=50)
    workers = [project.worker("--threads", "8") for _ in range(2)]
    eventually(lambda: len(project.events("end")) > 10, 30)
    cuts, end = 0, Deadline(seconds)
    while not end.passed:
        network.cut()
        cuts += 1
        time.sleep(end.remaining(0.5))  # the pace of the fault
    project.wait_for_effects(ids, 120 + jobs / 50)
    project.wait_until_empty()
    project.assert_effects_once(ids)
    starts = project.starts()
    print(f"\n{jobs} jobs, {cuts} cuts: {sum(starts.values()) - jobs} started again")
    for worker in workers:
        worker.terminate()
    assert [worker.wait(15) for worker in workers] == [0, 0]
    assert dead_ids(project) == []


@pytest.mark.parametrize("restarts", [1, pytest.param(20, marks=pytest.mark.long)])
def test_one_long_job_lives_through_restarts_of_the_broker(
    new_project: Callable[..., RabbitProject], killable_rabbitmq: RabbitServer, restarts: int
) -> None:
    project = new_project(killable_rabbitmq)
    [job] = project.enqueue("plain", {"gate": "end"}, max_attempts=3)
    worker = project.worker("--threads", "2")
    [start] = project.wait_for("start", [job])
    time.sleep(SETTLING_SECONDS)  # a queue that is younger may stay without a leader
    for number in range(restarts):
        faulthandler.dump_traceback_later(180, exit=True)  # pytest's own limit is for a test without twenty boots
        if number % 2:
            killable_rabbitmq.stop()
        else:
            killable_rabbitmq.kill()
        killable_rabbitmq.start()
        if number % 4 < 2 or number == restarts - 1:  # after the others the next fault comes while all reconnect
            [other] = eventually(lambda: _unless_away(lambda: project.enqueue("quick")), 40)
            project.wait_for("end", [other], 60)
    project.open_gate("end")
    [end] = project.wait_for("end", [job])
    took = (end.at - start.at) / 1e9
    print(f"\n{restarts} restarts under a job of {took:.0f} s")
    assert restarts == 1 or took >= 60
    eventually(lambda: _unless_away(lambda: project.jfast.queue.stats().ready + 1), 30, until=lambda got: got == 1)
    worker.terminate()
    assert worker.wait(15) == 0
    project.drain("--threads", "2")
    assert project.starts()[job] == 1
    assert dead_ids(project) == []


@pytest.mark.long
@pytest.mark.parametrize(("restarts", "confirmed"), [(6, 2000)])
def test_a_broker_that_dies_under_load_loses_and_doubles_no_effect(
    new_project: Callable[..., RabbitProject], killable_rabbitmq: RabbitServer, postgres_dsn: str,
    restarts: int, confirmed: int,
) -> None:  # fmt: skip
    project = new_project(killable_rabbitmq, dsn=postgres_dsn)
    queue: Any = project.jfast.queue.backend
    workers = [project.worker("--threads", "4") for _ in range(2)]
    [warm] = project.enqueue("quick")
    project.wait_for("end", [warm])
    time.sleep(SETTLING_SECONDS)  # a queue that is younger may stay without a leader
    # Every restart may look like a lapse to whichever worker is handed the other's job.
    publishers = Publishers(queue, 2, 3.0, task="work.quick", attempts=restarts + 3)
    try:
        for number in range(restarts):
            wanted = confirmed * (number + 1) // restarts
            eventually(lambda: len(publishers.confirmed), 120, until=lambda count: count >= wanted)  # noqa: B023
            killable_rabbitmq.stop() if number % 2 else killable_rabbitmq.kill()
            killable_rabbitmq.start()
    finally:
        sent = list(publishers.stop())
    up = time.monotonic()
    project.wait_for_effects(sent, 60)
    took = time.monotonic() - up
    project.wait_until_empty()
    effects, starts = project.store.effects(), project.starts()
    again = sum(starts.values()) - len(starts)
    print(f"\n{len(sent)} confirmed, {restarts} restarts: effects of all {took:.1f} s after; {again} started again")
    assert {name: count for name, count in effects.items() if count != 1} == {}
    assert dead_ids(project) == []
    for worker in workers:
        worker.terminate()
    assert [worker.wait(15) for worker in workers] == [0, 0]


def _unless_away(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UnavailableError:
        return None


# --- what it costs ---


def _cpu_in_half_a_second(worker: WorkerProcess) -> float:
    before = worker.cpu_seconds()
    time.sleep(0.5)  # the stretch of time that is measured
    return worker.cpu_seconds() - before


@pytest.mark.timed
def test_an_idle_worker_starts_at_once_and_costs_nothing(
    new_project: Callable[..., RabbitProject], rabbitmq_server: RabbitServer, rabbitmq_url: str
) -> None:
    project = new_project(rabbitmq_server)
    worker = project.worker("--threads", "8")
    [warm] = project.enqueue("plain")
    project.wait_for("end", [warm])
    latencies = []
    for _ in range(30):
        before = time.monotonic_ns()
        [job] = project.enqueue("plain")
        [event] = project.wait_for("start", [job])
        latencies.append((event.at - before) / 1e6)
    eventually(lambda: _cpu_in_half_a_second(worker) < 0.05, 20, what="the worker to be idle")
    used, began = worker.cpu_seconds(), time.monotonic()
    time.sleep(4)  # the stretch of time that is measured
    cpu = 100 * (worker.cpu_seconds() - used) / (time.monotonic() - began)
    print(f"\nidle: median {statistics.median(latencies):.1f} ms, worst {max(latencies):.1f} ms, {cpu:.2f} % of a core")
    # The target is 5 ms and 0.5 % on a machine that does nothing else; here others work beside it.
    assert statistics.median(latencies) < 25
    assert cpu < 1.5
