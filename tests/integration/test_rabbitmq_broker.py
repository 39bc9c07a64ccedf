"""What a broker does to its clients, and what becomes of jobs and callers then."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial

import pytest

from jfast_sync.errors import SchemaError, UnavailableError, UnsupportedError
from jfast_sync.outcome import Bury, Done, Release, Settlement
from jfast_sync.ports import DeadFilter, Held, Selection, Settled
from jfast_sync.queues.rabbitmq.connection import Connection, Server
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.integration.rabbitmq_steps import (
    EVERYTHING,
    SMALL,
    a_job,
    opened,
    settle,
    take,
    take_again,
    unless_away,
)
from tests.servers import Proxy
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually


def test_a_queue_of_other_arguments_is_named_with_the_way_out(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    name = rabbitmq_server.new_name()
    with opened(rabbitmq_server, name):
        pass
    with pytest.raises(SchemaError) as caught, opened(rabbitmq_server, name, queue_type="classic"):
        pass
    text = str(caught.value)
    assert name.replace("_", ".") in text
    assert "x-queue-type" in text
    assert "'quorum'" in text
    assert "'classic'" in text
    assert "rabbitmq_queue_type" in text


def test_claim_by_task_is_refused(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue, pytest.raises(UnsupportedError, match="registered"):
        queue.claim(1, 0, Selection(worker="w", tasks=frozenset({"t"})))


def test_a_version_that_is_too_old_is_refused(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jfast_sync.queues.rabbitmq.connection._OLDEST", (99, 0))
    with pytest.raises(SchemaError, match="too old"):
        Connection(Server(url=rabbitmq_url), "test")


def test_a_wrong_password_is_one_sentence_without_it(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    url = f"amqp://jfast:wr0ng@{rabbitmq_server.host}:{rabbitmq_server.port}/"
    queue = RabbitQueue(Server(url=url))
    with closing(queue), pytest.raises(UnavailableError, match="refuses the user or password") as caught:
        queue.setup()
    assert "wr0ng" not in str(caught.value)


def test_a_deleted_queue_is_made_again_by_who_publishes(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job()])
        with rabbitmq_server.connect() as connection:
            connection.channel().queue_delete(queue.topology.names.main)
        job = a_job()
        queue.enqueue([job])
        assert [lease.job.id for lease in take(queue, 1)] == [job.id]


def test_a_queue_deleted_under_a_consumer_is_made_again(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job()])
        settle(queue, *take(queue, 1))
        assert queue.claim(1, 0.1, EVERYTHING) == []
        name = queue.topology.names.main
        with rabbitmq_server.connect() as connection:
            connection.channel().queue_delete(name)
        eventually(lambda: name in rabbitmq_server.control("list_queues", "-q", "name").split(), 20)
        job = a_job()
        queue.enqueue([job])
        assert [lease.job.id for lease in take(queue, 1)] == [job.id]


def test_jobs_that_come_in_just_after_the_deletion_are_run(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    """A queue that is made again at once: RabbitMQ hands jobs to consumers of the old one, who never see them."""
    with opened(rabbitmq_server) as queue, rabbitmq_server.connect() as connection:
        operator = connection.channel()
        for number in range(6):
            queue.enqueue([a_job()])
            [lease] = take_again(queue, 1)
            eventually(lambda lease=lease: unless_away(lambda: settle(queue, lease)), 20)  # type: ignore[misc]
            unless_away(lambda: queue.claim(1, 0.05, EVERYTHING))
            operator.queue_delete(queue.topology.names.main)
            job = a_job(id=f"job-{number}")
            eventually(lambda job=job: unless_away(lambda: queue.enqueue([job])), 20)  # type: ignore[misc]
            leases = take_again(queue, 1)
            assert {lease.job.id for lease in leases} == {job.id}
            eventually(lambda leases=leases: unless_away(lambda: settle(queue, *leases)), 20)  # type: ignore[misc]


def test_a_deleted_named_queue_is_counted_and_reached_by_delays_again(
    rabbitmq_server: RabbitServer, rabbitmq_url: str
) -> None:
    with opened(rabbitmq_server) as queue, rabbitmq_server.connect() as connection:
        queue.enqueue([a_job(queue="mail")])
        for band in ("", ".high"):
            connection.channel().queue_delete(f"{queue.topology.names.main}.queue.mail{band}")
        assert queue.stats().ready == 0
        job = a_job(queue="mail", priority=1, delay=timedelta(seconds=0.1))
        queue.enqueue([job])
        assert [lease.job.id for lease in take_again(queue, 1)] == [job.id]


def test_a_queue_deleted_between_two_claims_is_reached_by_delays_again(
    rabbitmq_server: RabbitServer, rabbitmq_url: str
) -> None:
    with opened(rabbitmq_server) as queue, rabbitmq_server.connect() as connection:
        queue.enqueue([a_job()])
        take(queue, 1)
        connection.channel().queue_delete(f"{queue.topology.names.main}.high")
        unless_away(lambda: queue.claim(1, 0.2, EVERYTHING))
        eventually(lambda: unless_away(lambda: queue.claim(1, 0.2, EVERYTHING)) is not None, 20)
        job = a_job(priority=1, delay=timedelta(seconds=0.1))
        queue.enqueue([job])
        assert [lease.job.id for lease in take_again(queue, 1)] == [job.id]


def test_a_deleted_dead_queue_loses_no_job(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job(id="x")])
        [lease] = take(queue, 1)
        with rabbitmq_server.connect() as connection:
            connection.channel().queue_delete(queue.topology.names.dead)
        assert settle(queue, lease, outcome=Bury("no")) == [Settled.APPLIED]
        assert [letter.job.id for letter in queue.dead(DeadFilter(), limit=5)] == ["x"]


def test_a_queue_that_is_full_is_a_typed_error(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        pattern = f"^{queue.topology.names.main}$"
        rabbitmq_server.control(
            "set_policy", "full", pattern, '{"max-length":10,"overflow":"reject-publish"}', "--apply-to", "queues"
        )
        try:

            def refused() -> bool:
                try:
                    queue.enqueue([a_job() for _ in range(20)])
                except UnavailableError as exc:
                    return "did not take" in str(exc)
                return False

            assert eventually(refused, 15)
        finally:
            rabbitmq_server.control("clear_policy", "full")


def test_what_cannot_be_routed_is_said(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        with rabbitmq_server.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(queue.topology.names.main, "0.nowhere.normal", b"{}")
        [warning] = eventually(lambda: queue.stats().warnings)
        assert queue.topology.names.lost in warning


def test_twenty_five_releases_move_no_job(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job()])
        for _ in range(25):
            [lease] = take(queue, 1)
            assert (lease.job.attempts, lease.lapses) == (1, 0)
            assert settle(queue, lease, outcome=Release()) == [Settled.APPLIED]
        assert (queue.stats().ready, queue.stats().dead) == (1, 0)


def test_listing_for_ever_takes_nothing_away(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job() for _ in range(200)])
        leases = take(queue, 200)
        for start in range(0, 200, 50):
            settle(queue, *leases[start : start + 50], outcome=Bury("no"))
        first = [letter.job.id for letter in queue.dead(DeadFilter(), limit=10)]
        for _ in range(30):
            assert len(queue.dead(DeadFilter(), limit=1000)) == 200
        assert [letter.job.id for letter in queue.dead(DeadFilter(), limit=10)] == first
        assert queue.stats().dead == 200


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_many_dead_are_listed_in_pages(rabbitmq_server: RabbitServer, rabbitmq_url: str, count: int) -> None:
    with opened(rabbitmq_server) as queue:
        for start in range(0, count, 500):
            jobs = [a_job(id=f"job-{start + number:05}") for number in range(500)]
            queue.enqueue(jobs)
            settle(queue, *take(queue, 500), outcome=Bury("no"))
        before = time.monotonic()
        page = queue.dead(DeadFilter(), limit=50)
        took = time.monotonic() - before
        assert len(page) == 50
        assert took < 8
        after = queue.dead(DeadFilter(), limit=50, after=page[-1].job.id)
        assert len(after) == 50
        assert not {letter.job.id for letter in page} & {letter.job.id for letter in after}
        assert queue.revive(["job-00150", "unknown"]) == ["job-00150"]
        assert queue.stats().dead == count - 1


def test_an_idle_publishers_next_job_arrives_once(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    """Nobody answers heartbeats of a publisher that is not used; the broker hangs up."""
    server = Server(url=rabbitmq_url, heartbeat=1)
    queue = RabbitQueue(server, name=rabbitmq_server.new_name(), cascade=SMALL)
    with closing(queue):
        queue.setup()
        queue.enqueue([a_job(id="first")])
        connections = "jfast-sync enqueue"
        eventually(
            lambda: rabbitmq_server.control("list_connections", "client_properties").count(connections),
            20, until=lambda found: found == 0, what="the broker to hang up", interval=0.5,
        )  # fmt: skip
        queue.enqueue([a_job(id="second")])
        assert sorted(lease.job.id for lease in take(queue, 2)) == ["first", "second"]
        assert queue.claim(1, 0, EVERYTHING) == []


def test_a_child_process_publishes_on_a_connection_of_its_own(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job(id="parent")])
        child = multiprocessing.get_context("fork").Process(target=lambda: queue.enqueue([a_job(id="child")]))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        queue.enqueue([a_job(id="parent again")])
        assert sorted(lease.job.id for lease in take(queue, 3)) == ["child", "parent", "parent again"]


def test_a_cut_connection_costs_no_running_job(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, proxy: Callable[[int], Proxy]
) -> None:
    network = proxy(rabbitmq_server.port)
    with opened(rabbitmq_server, url=rabbitmq_server.url_by_port(network.port)) as queue:
        queue.enqueue([a_job(id="running", max_attempts=3), a_job(id="finished")])
        leases = {lease.job.id: lease for lease in take(queue, 2)}
        for _ in range(5):
            generation = queue._ledger.generation
            network.cut()
            eventually(partial(_is_past, queue, generation), 20, what="a new connection")
            eventually(
                lambda: unless_away(lambda: queue.extend([leases["running"]])), 20,
                until=lambda answer: answer == [Held.YES], what="the job to be recognised",
            )  # fmt: skip
        for lease in leases.values():
            eventually(partial(settle, queue, lease), 20, until=lambda answer: answer == [Settled.APPLIED])
        assert queue.claim(5, 0.5, EVERYTHING) == []
        stats = queue.stats()
        assert (stats.ready, stats.running, stats.dead) == (0, 0, 0)


def _is_past(queue: RabbitQueue, generation: int) -> bool:
    return queue._ledger.generation > generation


def test_a_job_finished_while_cut_off_is_not_run_again(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, proxy: Callable[[int], Proxy]
) -> None:
    network = proxy(rabbitmq_server.port)
    with opened(rabbitmq_server, url=rabbitmq_server.url_by_port(network.port)) as queue:
        queue.enqueue([a_job() for _ in range(4)])
        leases = take(queue, 4)
        network.refuse()
        network.cut()
        eventually(lambda: not queue.consumer._up.is_set(), what="the cut to be noticed")
        with pytest.raises(UnavailableError):  # before that, outcomes are applied and the acknowledgements lost
            settle(queue, *leases)
        network.restore()
        for lease in leases:
            eventually(
                lambda lease=lease: unless_away(lambda: settle(queue, lease)), 20,  # type: ignore[misc]
                until=lambda answer: answer == [Settled.APPLIED],
            )  # fmt: skip
        assert queue.claim(5, 0.5, EVERYTHING) == []


def test_a_channel_closed_by_the_broker_is_noticed(killable_rabbitmq: RabbitServer) -> None:
    """consumer_timeout: the broker closes the channel of whoever holds a message for too long."""
    with opened(killable_rabbitmq) as queue:
        killable_rabbitmq.set_env("consumer_timeout", "1500")
        killable_rabbitmq.set_env("channel_tick_interval", "500")
        try:
            queue.enqueue([a_job(id="long")])
            [lease] = take(queue, 1)
            generation = queue._ledger.generation
            eventually(lambda: queue._ledger.generation > generation, 30, what="the channel to be made again")
            eventually(lambda: unless_away(lambda: queue.extend([lease])), 20, until=lambda got: got == [Held.YES])
            queue.enqueue([a_job(id="short")])
            assert [each.job.id for each in take(queue, 1)] == ["short"]
            assert settle(queue, lease) == [Settled.APPLIED]
        finally:
            killable_rabbitmq.set_env("consumer_timeout", "1800000")
            killable_rabbitmq.set_env("channel_tick_interval", "60000")


def test_a_memory_alarm_is_a_typed_error_within_a_bound(
    killable_rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jfast_sync.queues.rabbitmq.publisher.BOUND", 3.0)  # eight seconds outside of tests
    with opened(killable_rabbitmq) as queue:
        queue.enqueue([a_job() for _ in range(3)])
        leases = take(queue, 3)
        killable_rabbitmq.alarm(on=True)
        try:
            before = time.monotonic()
            with pytest.raises(UnavailableError, match=r"holds back publishers|does not answer"):
                for _ in range(5):  # what is on its way when the alarm comes may still be taken
                    queue.enqueue([a_job()])
            assert time.monotonic() - before < 12
            assert settle(queue, leases[0]) == [Settled.APPLIED]  # acknowledgements go on
            assert any("holds back" in warning for warning in eventually(lambda: queue.stats().warnings, 20))
        finally:
            killable_rabbitmq.alarm(on=False)
        eventually(lambda: unless_away(lambda: queue.enqueue([a_job(id="after")])), 20)
        assert settle(queue, *leases[1:]) == [Settled.APPLIED] * 2


def test_a_broker_that_comes_back_needs_no_restart(killable_rabbitmq: RabbitServer) -> None:
    with opened(killable_rabbitmq) as queue:
        queue.enqueue([a_job(id=f"job-{number}") for number in range(10)])
        [running] = take(queue, 1)
        # A quorum queue whose broker is killed within a second of its declaration may stay without a leader.
        time.sleep(3)
        killable_rabbitmq.stop()
        with pytest.raises(UnavailableError):
            queue.enqueue([a_job()])
        killable_rabbitmq.start()
        done: set[str] = set()

        def finish() -> int:
            leases = queue.claim(20, 0.2, EVERYTHING)
            settle(queue, *leases)
            done.update(lease.job.id for lease in leases)
            return len(done)

        eventually(lambda: unless_away(finish), 60, until=lambda count: count == 9, what="the nine others")
        assert running.job.id not in done
        eventually(lambda: unless_away(lambda: settle(queue, running)), 30, until=lambda got: got == [Settled.APPLIED])
        stats = queue.stats()
        assert (stats.ready, stats.running) == (0, 0)


def test_eight_threads_settle_what_one_claims(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        queue.enqueue([a_job() for _ in range(1000)])
        leases = take(queue, 1000)
        seen: list[Settled] = []

        def work(mine: list[object]) -> None:
            for lease in mine:
                seen.extend(queue.settle([Settlement(lease, Done())]))  # type: ignore[arg-type]

        threads = [threading.Thread(target=work, args=(leases[number::8],)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [Settled.APPLIED] * 1000
        assert queue.claim(1, 0, EVERYTHING) == []
        assert queue.stats().ready == 0
