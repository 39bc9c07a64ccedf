"""Traces and metrics of jobs, by OpenTelemetry's conventions for messaging; loaded where the telemetry plugin is on.

A job carries the W3C context of the span it was built in. Its attempts are spans of that trace, below and linked to
that span, however much later they run. Names: https://opentelemetry.io/docs/specs/semconv/messaging/ (1.44).
Providers and exporters are the application's; without them all of this does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from opentelemetry import context, metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jfast_sync.job import Job
from jfast_sync.redact import error_text, traceback_text

__all__ = ["Processing", "Telemetry"]

_W3C: Final = TraceContextTextMapPropagator()
_PROCESS: Final = "process"
_OTHER: Final = "_OTHER"
_FLUSH: Final = 2000  # milliseconds
#: Seconds, as the conventions ask; then on to the hour that a long job may take.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 900, 3600)


class Telemetry:
    """What an app says about its jobs.

    Args:
        system: the queue's backend, ``messaging.system``.
        tracer_provider: where spans go; the process's unless given.
        meter_provider: where measurements go; the process's unless given.
    """

    def __init__(
        self,
        system: str,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._system = system
        self._tracer = trace.get_tracer("jfast_sync", _version(), tracer_provider)
        meter = metrics.get_meter("jfast_sync", _version(), meter_provider)
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    def carrier(self) -> dict[str, str] | None:
        """Return the W3C context of the span this thread is in, for a job to carry; None outside every span."""
        if not trace.get_current_span().get_span_context().is_valid:
            return None
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    @contextmanager
    def processing(self, job: Job) -> Iterator[Processing]:
        """Be in the span of one attempt, in the trace that the job carries; in a new one where it carries none."""
        parent = _context_of(job)
        producer = trace.get_current_span(parent).get_span_context()
        common = {
            "messaging.system": self._system,
            "messaging.operation.name": _PROCESS,
            "messaging.destination.name": job.queue,
            "jfast.task": job.task,
        }
        self._consumed.add(1, common)
        own: dict[str, Any] = {
            "messaging.operation.type": _PROCESS,
            "messaging.message.id": job.id,
            "jfast.attempt": job.attempts,
        }
        if job.request_id is not None:
            own["messaging.message.conversation_id"] = job.request_id
        with self._tracer.start_as_current_span(
            f"{_PROCESS} {job.queue}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=common | own,
            links=[trace.Link(producer)] if producer.is_valid else [],
            record_exception=False,  # its text may hold row values and passwords
            set_status_on_exception=False,
        ) as span:
            processing = Processing(span)
            started = time.monotonic()
            try:
                yield processing
            finally:
                self._duration.record(time.monotonic() - started, common | processing.error)

    @contextmanager
    def joined(self, job: Job) -> Iterator[None]:
        """Be in the trace that the job carries, without a span: the one for this attempt is another process's.

        What the handler's own spans have left to send is sent at the end, because such a process just stops.
        """
        token = context.attach(_context_of(job))
        try:
            yield
        finally:
            context.detach(token)
            for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
                flush = getattr(provider, "force_flush", None)
                if flush is not None:
                    flush(_FLUSH)


class Processing:
    """One attempt's span, to be told how it ended."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.error: dict[str, str] = {}

    def ended(self, outcome: str, failure: str | None = None, error: BaseException | None = None) -> None:
        """Write down the end of the attempt.

        Args:
            outcome: what becomes of the job, in a word.
            failure: why it failed, redacted; None where it did not.
            error: what was raised, where this process caught it.
        """
        self._span.set_attribute("jfast.outcome", outcome)
        if failure is None:
            return
        self.error = {"error.type": _type(failure, error)}
        self._span.set_attributes(self.error)
        self._span.set_status(trace.StatusCode.ERROR, failure)
        if error is not None:
            told = {
                "exception.type": _name(error),
                "exception.message": error_text(error),
                "exception.stacktrace": traceback_text(error),
            }
            self._span.add_event("exception", told)


def _context_of(job: Job) -> context.Context:
    # Into an empty context: whatever span the thread happens to be in, the job is not a part of it.
    return _W3C.extract(dict(job.trace or {}), context.Context())


def _type(failure: str, error: BaseException | None) -> str:
    if failure.startswith("TimeoutError:"):  # what the handler raised then was only its way out
        return "TimeoutError"
    return _name(error) if error is not None else _OTHER


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _version() -> str:
    try:
        return version("jfast-sync")
    except PackageNotFoundError:  # run from a source tree
        return ""
