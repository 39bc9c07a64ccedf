"""Four relays on one outbox, and a bus that fails at random: every key keeps its order, every event arrives once."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from jfast_sync.buses.recording import RecordingBus
from jfast_sync.errors import UnavailableError
from jfast_sync.events import Event
from jfast_sync.loop import Deadline
from jfast_sync.tasks.registry import isolated
from tests.integration.outbox_support import opened, relay_of
from tests.waiting import eventually

KEYS = 7


class FlakyBus(RecordingBus):
    """Refuses one in ten events, and one in twenty batches as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self._random = random.Random(7)
        self._one_at_a_time = threading.Lock()

    def send(self, publications):
        with self._one_at_a_time:
            if self._random.random() < 0.05:
                self.failures += 1
                raise UnavailableError("the bus is away")
            answers: list[Exception | None] = []
            stuck = set()
            for publication in publications:
                # As a real bus: behind a refused event of its key nothing is taken.
                if publication.event.key in stuck or self._random.random() < 0.1:
                    stuck.add(publication.event.key)
                    answers.append(UnavailableError("not this one"))
                    self.failures += 1
                else:
                    answers += super().send([publication])
            return answers


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request):
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@contextmanager
def relays(jf, count):
    made = [relay_of(jf, interval=0.05, batch_size=20, max_attempts=10_000) for _ in range(count)]
    for relay in made:
        relay.start()
    try:
        yield
    finally:
        for relay in made:
            relay.stop()
        assert all(relay.join(Deadline(10)) for relay in made)


@pytest.mark.parametrize("count", [140, pytest.param(3_000, marks=pytest.mark.long)])
def test_the_order_of_every_key_survives_failures(dsn, count):
    bus = FlakyBus()
    with isolated(), opened(dsn, bus=bus) as (jf, _):
        events = [Event(type="x", id=f"{number:05}", key=f"k{number % KEYS}") for number in range(count)]
        for start in range(0, count, 50):
            with jf.session() as session:
                for event in events[start : start + 50]:
                    jf.outbox.publish(session, "orders", event)

        def left():
            with jf.session() as session:  # nobody waits for the pauses between two attempts
                now = "now()" if jf.messages.postgres else "0"
                failed = "status = 'pending' AND attempts > 0 AND lease_token IS NULL"
                session.execute(text(f"UPDATE jfast_outbox SET available_at = {now} WHERE {failed}"))
                return session.execute(text("SELECT count(*) FROM jfast_outbox WHERE status = 'pending'")).scalar()

        with relays(jf, 4):
            eventually(left, 150, until=lambda pending: pending == 0, interval=0.05)

    print(f"{count} events of {KEYS} keys by 4 relays, {bus.failures} failures on the way")
    assert bus.failures > count / 20
    for key in {event.key for event in events}:
        sent = [publication.event.id for publication in bus.sent if publication.event.key == key]
        assert sent == [event.id for event in events if event.key == key]
