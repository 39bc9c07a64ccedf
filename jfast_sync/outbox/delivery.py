"""Sending leased messages: jobs to the queue in batches, events to the bus in their order. No database is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from jfast_sync.errors import ConfigError, PayloadError, UnavailableError, UnsupportedError
from jfast_sync.event import Event
from jfast_sync.job import Job
from jfast_sync.outbox.rows import EVENT, JOB, Failure, Lane, Message
from jfast_sync.ports import EventBus, Publication, Queue
from jfast_sync.redact import error_text

__all__ = ["Delivery", "Result"]

T = TypeVar("T")

_NO_QUEUE: Final = 'there is no queue to put the job into: add "queue" to [plugins] enabled'
_NO_BUS: Final = (
    'there is no event bus to send the event to: add "events" (Kafka) to [plugins] enabled; subscribers in this '
    "service got their jobs when the event was published"
)
#: No retry delivers these as things are.
_FINAL: Final = (PayloadError, ConfigError, UnsupportedError)
_PATIENCE: Final = 1.0  # seconds that sending goes on after the server was found to be away
_AFTER_ONE: Final = 10


@dataclass(slots=True)
class Result:
    """What became of one batch. ``unsent`` were not tried. ``away``: a server could not be reached."""

    sent: list[Message] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    unsent: list[Message] = field(default_factory=list)
    away: bool = False


class Delivery:
    """Sends messages to where they go.

    Args:
        queue: takes the jobs; None where none is configured.
        bus: takes the events; None where none is configured.
    """

    def __init__(self, queue: Queue | None, bus: EventBus | None) -> None:
        self._queue = queue
        self._bus = bus

    def send(self, messages: Sequence[Message], *, stop: Callable[[], bool] = lambda: False) -> Result:
        """Send messages and say what became of each.

        Args:
            messages: leased ones; those of one topic and key in their order.
            stop: asked before each call of a server; what was not tried by then is not sent.
        """
        result = Result()
        for message in messages:
            if message.kind not in (JOB, EVENT):
                result.failed.append(
                    Failure(message=message, error=f"a message of unknown kind {message.kind!r}", final=True)
                )
        self._send_jobs([message for message in messages if message.kind == JOB], result, stop)
        self._send_events([message for message in messages if message.kind == EVENT], result, stop)
        return result

    # --- jobs ------------------------------------------------------------------------------------------------

    def _send_jobs(self, messages: Sequence[Message], result: Result, stop: Callable[[], bool]) -> None:
        jobs = _decoded(messages, Message.job, result, _NO_QUEUE if self._queue is None else None)
        away_until: float | None = None
        for part in _parts(jobs):
            if stop() or (away_until is not None and time.monotonic() > away_until):
                result.unsent += [message for message, _ in part]
                continue
            self._send_part(part, result)
            if result.away and away_until is None:
                away_until = time.monotonic() + _PATIENCE

    def _send_part(self, part: Sequence[tuple[Message, Job]], result: Result) -> None:
        try:
            self._enqueue([job for _, job in part])
        except Exception as exc:
            away = isinstance(exc, UnavailableError)
            result.away = result.away or away
            if len(part) > 1 and not away:  # one of them is at fault: find out which
                for one in part:
                    self._send_part([one], result)
                return
            result.failed += [_failure(message, exc) for message, _ in part]
        else:
            result.sent += [message for message, _ in part]

    def _enqueue(self, jobs: Sequence[Job]) -> None:
        if self._queue is not None:
            self._queue.enqueue(jobs)

    # --- events ----------------------------------------------------------------------------------------------

    def _send_events(self, messages: Sequence[Message], result: Result, stop: Callable[[], bool]) -> None:
        events = _decoded(messages, Message.event, result, _NO_BUS if self._bus is None else None)
        if not events or self._bus is None:
            return
        if stop():
            result.unsent += [message for message, _ in events]
            return
        answers = self._publish(events)
        stuck: set[Lane] = set()
        for (message, _), answer in zip(events, answers, strict=True):
            if answer is None:
                result.sent.append(message)
            elif message.lane in stuck:
                result.unsent.append(message)
            else:
                result.failed.append(_failure(message, answer))
                result.away = result.away or isinstance(answer, UnavailableError)
                if message.lane is not None and not result.failed[-1].final:
                    stuck.add(message.lane)

    def _publish(self, events: Sequence[tuple[Message, Event]]) -> Sequence[Exception | None]:
        """Send events; where the bus fails for all of them, find out which is at fault."""
        if self._bus is None:
            return []
        try:
            return self._bus.send([Publication(topic=message.destination, event=event) for message, event in events])
        except UnavailableError as exc:
            return [exc] * len(events)
        except Exception as exc:
            return [exc] if len(events) == 1 else self._publish_singly(events)

    def _publish_singly(self, events: Sequence[tuple[Message, Event]]) -> list[Exception | None]:
        answers: list[Exception | None] = []
        stuck: dict[Lane, Exception] = {}
        away: Exception | None = None
        for message, event in events:
            before = away or (stuck.get(message.lane) if message.lane is not None else None)
            answer = before or self._publish([(message, event)])[0]
            away = answer if isinstance(answer, UnavailableError) else away
            if message.lane is not None and answer is not None and not isinstance(answer, _FINAL):
                stuck[message.lane] = answer
            answers.append(answer)
        return answers


def _decoded(
    messages: Sequence[Message], decode: Callable[[Message], T], result: Result, refusal: str | None
) -> list[tuple[Message, T]]:
    decoded: list[tuple[Message, T]] = []
    for message in messages:
        try:
            if refusal is None:
                decoded.append((message, decode(message)))
                continue
            error = error_text(ConfigError(refusal))
        except Exception as exc:  # whatever a row holds, it must not hold back the others
            error = error_text(exc)
        result.failed.append(Failure(message=message, error=error, final=True))
    return decoded


def _failure(message: Message, exc: Exception) -> Failure:
    away = isinstance(exc, UnavailableError)
    return Failure(message=message, error=error_text(exc), final=isinstance(exc, _FINAL), away=away)


def _parts(jobs: Sequence[tuple[Message, Job]]) -> Iterator[Sequence[tuple[Message, Job]]]:
    """Send together what was not tried yet; what failed once in tens, then alone, so that it takes nobody along."""
    fresh = [pair for pair in jobs if pair[0].attempts == 0]
    once = [pair for pair in jobs if pair[0].attempts == 1]
    if fresh:
        yield fresh
    for start in range(0, len(once), _AFTER_ONE):
        yield once[start : start + _AFTER_ONE]
    for pair in jobs:
        if pair[0].attempts > 1:
            yield [pair]
