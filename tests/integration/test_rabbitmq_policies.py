"""Queues that are not what they were declared as: by somebody else's declaration, or under a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jfast_sync.errors import SchemaError, UnavailableError
from jfast_sync.queues.rabbitmq.queue import RabbitQueue
from jfast_sync.queues.rabbitmq.topology import Queue as Declared
from tests.integration.rabbitmq_steps import a_job, opened
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import eventually


@pytest.fixture
def policy(rabbitmq_server: RabbitServer) -> Iterator[Callable[..., None]]:
    """Set a policy on the names that match a pattern, until the test is over."""
    name = f"policy-{rabbitmq_server.new_name()}"

    def set_policy(pattern: str, **definition: Any) -> None:
        keys = {key.replace("_", "-"): value for key, value in definition.items()}
        rabbitmq_server.control("set_policy", name, pattern, json.dumps(keys), "--apply-to", "queues")

    yield set_policy
    rabbitmq_server.control("clear_policy", name)


def warnings(queue: RabbitQueue) -> list[str]:
    """What is said by a process that has just started."""
    queue.policies.try_at = 0.0
    return list(queue.stats().warnings)


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_without_policies_nothing_is_said_and_nothing_stays(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, queue_type: str
) -> None:
    with opened(rabbitmq_server, queue_type=queue_type) as queue:
        prefix = queue.topology.names.prefix
        before = [name for name in rabbitmq_server.control("list_queues", "name").split() if name.startswith(prefix)]
        assert warnings(queue) == []
        assert not queue.policies.is_due
        after = [name for name in rabbitmq_server.control("list_queues", "name").split() if name.startswith(prefix)]
        assert sorted(after) == sorted(before)


@pytest.mark.parametrize("pattern", ["^{}", r"^{}\.delay\.\d+$", "delay"])
def test_levels_that_do_not_refuse_are_found(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, policy: Callable[..., None], pattern: str
) -> None:
    with opened(rabbitmq_server) as queue:
        prefix = queue.topology.names.prefix
        policy(pattern.format(prefix), overflow="drop-head")
        found = eventually(lambda: warnings(queue), 20)
        assert f"{prefix}.delay.*" in found[0]
        assert "overflow" in found[0]


def test_a_delivery_limit_is_found(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, policy: Callable[..., None]
) -> None:
    with opened(rabbitmq_server) as queue:
        policy(f"^{queue.topology.names.prefix}", delivery_limit=5)
        found = eventually(lambda: warnings(queue), 20)
        assert len(found) == 2
        assert all("delivery-limit" in warning for warning in found)


@pytest.mark.parametrize(
    ("queue_type", "also"), [("quorum", {}), ("classic", {}), ("classic", {"overflow": "drop-head"})]
)
def test_a_length_limit_refuses_what_comes_and_drops_nothing(
    rabbitmq_server: RabbitServer, rabbitmq_url: str, policy: Callable[..., None], queue_type: str, also: dict[str, str]
) -> None:
    """The broker's default is to drop the oldest message; on classic queues no policy brings that back."""
    with opened(rabbitmq_server, queue_type=queue_type) as queue:
        policy(f"^{queue.topology.names.prefix}$", max_length=10, **also)
        stored: list[str] = []

        def refused() -> bool:
            try:
                stored.extend(queue.enqueue([a_job()]))
            except UnavailableError as exc:
                return "did not take" in str(exc)
            return False

        assert eventually(refused, 15)
        assert queue.stats().ready == len(stored)


def test_a_level_declared_without_refusing_is_named(rabbitmq_server: RabbitServer, rabbitmq_url: str) -> None:
    with opened(rabbitmq_server) as queue:
        level = queue.topology.names.level(2)
        [arguments] = [
            dict(part.arguments) for part in queue.topology.parts() if isinstance(part, Declared) and part.name == level
        ]
        del arguments["x-overflow"]
        with rabbitmq_server.connect() as connection:
            channel = connection.channel()
            channel.queue_delete(level)
            channel.queue_declare(level, durable=True, arguments=arguments)
        queue._maker.forget()  # what this process has declared ten seconds ago
        with pytest.raises(SchemaError) as caught:
            warnings(queue)
        assert level in str(caught.value)
        assert "x-overflow" in str(caught.value)


def test_an_alarm_stops_no_statistics(killable_rabbitmq: RabbitServer) -> None:
    with opened(killable_rabbitmq) as queue:
        killable_rabbitmq.alarm(on=True)
        try:
            assert queue.stats().ready == 0
            assert not any("policy" in warning for warning in warnings(queue))
        finally:
            killable_rabbitmq.alarm(on=False)
        assert eventually(lambda: warnings(queue), 20, until=lambda found: not found) == []
