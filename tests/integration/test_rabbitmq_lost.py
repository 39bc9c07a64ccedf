"""What RabbitMQ cannot route is put back by whoever works, and is never early, never lost."""

from __future__ import annotations

import time
from datetime import timedelta

import pika
import pytest

from jfast_sync.ports import DeadFilter
from jfast_sync.queues.rabbitmq.cascade import Cascade
from jfast_sync.queues.rabbitmq.names import BANDS, WorkQueue
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from tests.integration.rabbitmq_steps import EVERYTHING, SMALL, a_job, opened, settle, take_again, unless_away
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recovery looks, as it does after a pause outside of tests."""
    monkeypatch.setattr("jfast_sync.queues.rabbitmq.lost._EVERY", 0.0)


def delete(server: RabbitServer, queue: RabbitQueue, name: str) -> None:
    with server.connect() as connection:
        for band in range(len(BANDS)):
            connection.channel().queue_delete(queue.topology.names.work(WorkQueue(band, name)))


def lost(queue: RabbitQueue) -> bool:
    return any(queue.topology.names.lost in warning for warning in queue.stats().warnings)


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_a_delay_that_ends_while_its_queue_is_deleted(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, priority: int
) -> None:
    name = rabbitmq_server.new_name()
    with opened(rabbitmq_server, name) as enqueuer, opened(rabbitmq_server, name) as worker:
        job = a_job(queue="mail", priority=priority, delay=timedelta(seconds=0.6), payload={"to": "ada"})
        enqueuer.enqueue([job])
        delete(rabbitmq_server, enqueuer, "mail")
        with rabbitmq_server.connect() as connection:  # the library would make the queue again
            eventually(lambda: _count(connection, enqueuer.topology.names.lost), 20, what="the job among the lost")
        worker.recover()
        [lease] = take_again(worker, 1)
        assert (lease.job.id, lease.job.payload, lease.job.attempts) == (job.id, {"to": "ada"}, 1)
        settle(worker, lease)
        assert eventually(lambda: not lost(worker), 20)
        assert worker.stats().dead == 0


def test_one_that_is_not_due_yet_goes_round_again(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server, cascade=Cascade(levels=3, tick_ms=100)) as queue:  # 0.7 s at most
        before = time.monotonic()
        queue.enqueue([a_job(queue="mail", delay=timedelta(seconds=2))])
        delete(rabbitmq_server, queue, "mail")
        with rabbitmq_server.connect() as connection:
            eventually(lambda: _count(connection, queue.topology.names.lost), 20, what="the job among the lost")
        queue.recover()
        take_again(queue, 1)
        assert time.monotonic() - before >= 2.0


def test_what_is_no_job_becomes_a_dead_letter(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        with rabbitmq_server.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(queue.topology.names.main, "0.nowhere.normal", b"\xff no job")
        assert eventually(lambda: lost(queue))
        queue.recover()
        [letter] = eventually(lambda: queue.dead(DeadFilter(), limit=5))
        assert letter.raw == b"\xff no job"
        assert "could not be routed" in str(letter.job.error)
        assert not lost(queue)


def test_many_are_put_back_once(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        names, ids = queue.topology.names, {f"job-{number}" for number in range(1200)}
        with rabbitmq_server.connect() as connection:
            channel = connection.channel()
            for job_id in ids:  # as the cascade would, where there is no such queue
                body = b'{"id": "%s", "task": "t", "queue": "mail"}' % job_id.encode()
                channel.basic_publish(names.main, f"0.{names.destination(WorkQueue(1, 'mail'))}", body)
            eventually(lambda: _count(connection, names.lost), 30, until=lambda count: count == len(ids))
        queue.recover()
        leases = take_again(queue, len(ids))
        assert {lease.job.id for lease in leases} == ids
        assert unless_away(lambda: queue.claim(5, 0.2, EVERYTHING)) in ([], None)


def test_a_deleted_queue_of_the_lost_is_made_again(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server, cascade=SMALL) as queue:
        with rabbitmq_server.connect() as connection:
            connection.channel().queue_delete(queue.topology.names.lost)
        assert queue.recover() == 0
        with rabbitmq_server.connect() as connection:
            assert _count(connection, queue.topology.names.lost) == 0


def _count(connection: pika.BlockingConnection, queue: str) -> int:
    channel = connection.channel()
    count = int(channel.queue_declare(queue, passive=True).method.message_count)
    channel.close()
    return count
