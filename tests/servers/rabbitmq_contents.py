"""What tests do to the messages of one queue: let time pass for them, and throw them away."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pika

from jfast_sync.queues.rabbitmq.names import BANDS, DEFAULT_QUEUE, WorkQueue
from jfast_sync.queues.rabbitmq.topology import Topology

_INSTANTS = ("available_at", "created_at", "snoozed_since", "died_at")


class Contents:
    """The messages under one prefix, seen by a client that is not the library."""

    def __init__(self, url: str, topology: Topology, queues: Iterable[str] = (DEFAULT_QUEUE,)) -> None:
        self._url = url
        self._topology = topology
        self._queues = sorted({DEFAULT_QUEUE, *queues})

    def pass_time(self, seconds: float) -> None:
        """Move every stored instant into the past, and every message to where it would be by then."""
        names = self._topology.names
        with self._channel() as channel:
            for queue in (names.dead, *self._work_queues()):
                self._rewrite(channel, queue, seconds)
            waiting = [self._moved(body, seconds) for body in self._delayed(channel)]
            for data in sorted(waiting, key=lambda data: str(data["available_at"])):
                self._put_back(channel, data)

    def empty(self) -> None:
        """Remove every message, and every named queue; what else there was is made again by the next setup."""
        names = self._topology.names
        if not self._exists(names.directory):
            return
        with self._channel() as channel:
            told = [names.directory] if len(self._queues) > 1 else []
            for queue in (*self._work_queues(), names.dead, *told):
                channel.queue_delete(queue)  # also what is on its way back from a connection just closed
            for level in range(self._topology.cascade.levels):
                channel.queue_purge(names.level(level))
            channel.queue_purge(names.lost)

    def put(self, body: bytes, queue: str = DEFAULT_QUEUE) -> None:
        """Publish a foreign body straight into a work queue."""
        with self._channel() as channel:
            channel.basic_publish("", self._topology.names.work(WorkQueue(1, queue)), body)

    def _exists(self, queue: str) -> bool:
        with self._channel() as channel:
            try:
                channel.queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
            return True

    def _work_queues(self) -> list[str]:
        works = [WorkQueue(band, queue) for queue in self._queues for band in range(len(BANDS))]
        return [self._topology.names.work(work) for work in works]

    def _rewrite(self, channel: Any, queue: str, seconds: float) -> None:
        messages = list(_drained(channel, queue))
        for body, properties in messages:
            try:
                changed = json.dumps(self._moved(body, seconds)).encode()
            except (ValueError, AttributeError, RecursionError):
                changed = body
                if properties.headers and "jfast-died-at" in properties.headers:
                    properties.headers["jfast-died-at"] -= int(seconds * 1000)
            own = {key: value for key, value in (properties.headers or {}).items() if key.startswith("jfast-")}
            channel.basic_publish("", queue, changed, _properties(properties.message_id, own))

    def _delayed(self, channel: Any) -> list[bytes]:
        levels = [self._topology.names.level(level) for level in range(self._topology.cascade.levels)]
        return [body for level in levels for body, _ in _drained(channel, level)]

    def _moved(self, body: bytes, seconds: float) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(body)
        for key in _INSTANTS:
            if data.get(key) is not None:
                data[key] = (datetime.fromisoformat(data[key]) - timedelta(seconds=seconds)).isoformat()
        if data.get("due_ms") is not None:
            data["due_ms"] -= int(seconds * 1000)
        return data

    def _put_back(self, channel: Any, data: dict[str, Any]) -> None:
        names, cascade = self._topology.names, self._topology.cascade
        band = 1 - (data["priority"] > 0) + (data["priority"] < 0)
        work = WorkQueue(band, data["queue"])
        left = (datetime.fromisoformat(data["available_at"]) - datetime.now(UTC)) / timedelta(milliseconds=1)
        body = json.dumps(data).encode()
        if left <= 0:
            channel.basic_publish("", names.work(work), body, _properties())
        else:
            key = cascade.key(cascade.ticks(left), names.destination(work))
            channel.basic_publish(names.level(cascade.levels - 1), key, body, _properties())

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel
        finally:
            connection.close()


def _drained(channel: Any, queue: str) -> Iterator[tuple[bytes, Any]]:
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return
        yield body, properties


def _properties(message_id: str | None = None, headers: dict[str, Any] | None = None) -> pika.BasicProperties:
    from jfast_sync.queues.rabbitmq.publisher import new_message_id

    return pika.BasicProperties(delivery_mode=2, message_id=message_id or new_message_id(), headers=headers or None)
