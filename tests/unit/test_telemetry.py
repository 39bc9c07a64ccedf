"""Traces and metrics: a job's attempts join the trace it was built in, and nothing is loaded where that is off."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from opentelemetry.trace import SpanKind, StatusCode

from jfast_sync import JFast, Job, context
from jfast_sync.config import load_config
from jfast_sync.context import Origin, bind, bind_app
from jfast_sync.errors import MissingDriverError
from jfast_sync.events import Event
from jfast_sync.job import Lease
from jfast_sync.observers import Observers
from jfast_sync.outcome import Policy
from jfast_sync.ports import Selection
from jfast_sync.tasks import Cancel, Retry, Snooze
from jfast_sync.tasks.declarations import Declarations
from jfast_sync.tasks.registry import Registry
from jfast_sync.telemetry import Telemetry
from jfast_sync.testing import drain
from jfast_sync.worker import WorkerOptions
from jfast_sync.worker.execute import Executor
from jfast_sync.worker.transaction import Transactions

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded:
    """An app in memory whose spans and measurements are kept."""

    def __init__(self, app: JFast) -> None:
        self.app = app
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        app.telemetry = Telemetry("memory", tracer_provider=self.provider, meter_provider=self.meters)

    def run(self, *jobs: Job) -> list[ReadableSpan]:
        """Run jobs, and return the spans of their attempts."""
        self.app.queue.enqueue_many(jobs)
        drain(self.app, raise_errors=False)
        return self.spans("process")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def measured(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        scopes = data.resource_metrics[0].scope_metrics
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    overrides: dict[str, dict[str, object]] = {
        "plugins": {"enabled": ["queue", "telemetry"]},
        "queue": {"backend": "memory", "backoff_base": 0.0, "max_attempts": 1},
    }
    with JFast(load_config(environ={}, overrides=overrides), tasks=Registry(Declarations())) as app, bind_app(app):
        recorded = Recorded(app)
        yield recorded
        recorded.provider.shutdown()
        recorded.meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def identity(span: ReadableSpan | trace.Span) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


# --- what a job carries ----------------------------------------------------------------------------------------


def test_a_job_built_in_a_span_carries_its_w3c_context(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("request") as span:
        carried = Job(task="t").trace
        event = Event(type="made").trace
    trace_id, span_id = identity(span)
    flags = span.get_span_context().trace_flags
    assert carried == {"traceparent": f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"}
    assert event == carried


def test_the_tracestate_is_carried_too(recorded: Recorded) -> None:
    state = trace.TraceState([("vendor", "x")])
    there = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1), trace_state=state)
    with trace.use_span(trace.NonRecordingSpan(there)):
        carried = Job(task="t").trace
    assert carried == {"traceparent": f"00-{1:032x}-{2:016x}-01", "tracestate": "vendor=x"}


def test_outside_a_span_it_carries_the_requests_trace_or_none(recorded: Recorded) -> None:
    assert Job(task="t").trace is None
    with bind(Origin(trace={"traceparent": REMOTE})):
        assert Job(task="t").trace == {"traceparent": REMOTE}


def test_the_span_inside_a_request_goes_before_what_the_request_came_with(recorded: Recorded) -> None:
    with bind(Origin(trace={"traceparent": REMOTE})), recorded.tracer.start_as_current_span("view") as span:
        carried = Job(task="t").trace
    assert carried is not None
    assert f"{identity(span)[1]:016x}" in carried["traceparent"]


def test_a_trace_that_is_given_is_kept(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("request"):
        assert Job(task="t", trace={"traceparent": REMOTE}).trace == {"traceparent": REMOTE}
        assert Job(task="t", trace=None).trace is None


def test_nothing_is_carried_where_the_plugin_is_off(recorded: Recorded) -> None:
    recorded.app.telemetry = None
    with recorded.tracer.start_as_current_span("request"):
        assert Job(task="t").trace is None


# --- the span of an attempt ------------------------------------------------------------------------------------


def test_an_attempt_joins_the_producers_trace_and_links_to_it(recorded: Recorded) -> None:
    recorded.app.tasks.task("t")(lambda: None)
    with recorded.tracer.start_as_current_span("request") as producer:
        job = Job(task="t", queue="mails", request_id="req-1")
    with recorded.tracer.start_as_current_span("whatever this thread does meanwhile"):
        (span,) = recorded.run(job)
    assert span.name == "process mails"
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == identity(producer)
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [identity(producer)]
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        names.MESSAGING_SYSTEM: "memory",
        names.MESSAGING_OPERATION_NAME: "process",
        names.MESSAGING_OPERATION_TYPE: names.MessagingOperationTypeValues.PROCESS.value,
        names.MESSAGING_DESTINATION_NAME: "mails",
        names.MESSAGING_MESSAGE_ID: job.id,
        names.MESSAGING_MESSAGE_CONVERSATION_ID: "req-1",
        "jfast.task": "t",
        "jfast.attempt": 1,
        "jfast.outcome": "done",
    }


@pytest.mark.parametrize("carrier", [None, {}, {"traceparent": "garbage"}, {"other": "x"}])
def test_a_job_without_a_trace_begins_one(recorded: Recorded, carrier: dict[str, str] | None) -> None:
    recorded.app.tasks.task("t")(lambda: None)
    with recorded.tracer.start_as_current_span("whatever this thread does meanwhile"):
        (span,) = recorded.run(Job(task="t", trace=carrier))
    assert span.parent is None
    assert list(span.links) == []


def test_what_a_handler_does_and_enqueues_is_below_its_span(recorded: Recorded) -> None:
    @recorded.app.tasks.task("first")
    def first() -> None:
        with recorded.tracer.start_as_current_span("inside"):
            pass
        recorded.app.queue.enqueue(Job(task="second"))

    recorded.app.tasks.task("second")(lambda: None)
    one, two = recorded.run(Job(task="first", trace={"traceparent": REMOTE}))
    (inside,) = recorded.spans("inside")
    for below in (inside, two):
        assert below.parent is not None
        assert (below.parent.trace_id, below.parent.span_id) == identity(one)
    assert f"{identity(two)[0]:032x}" in REMOTE


def test_nothing_of_a_span_stays_on_the_thread(recorded: Recorded) -> None:
    recorded.app.tasks.task("t")(lambda: None)
    recorded.run(Job(task="t"))
    assert not trace.get_current_span().get_span_context().is_valid


def test_each_attempt_is_a_span_of_its_own(recorded: Recorded) -> None:
    @recorded.app.tasks.task("t", max_attempts=2)
    def fails() -> None:
        raise LookupError("no")

    spans = recorded.run(Job(task="t", trace={"traceparent": REMOTE}))
    assert [(attributes(span)["jfast.attempt"], attributes(span)["jfast.outcome"]) for span in spans] == [
        (1, "retry"),
        (2, "dead"),
    ]
    assert len({identity(span)[0] for span in spans}) == 1


def test_a_failure_is_told_by_type_and_without_secrets(recorded: Recorded) -> None:
    @recorded.app.tasks.task("t")
    def fails() -> None:
        raise ConnectionError("postgresql://app:hunter2@db/shop refused")

    (span,) = recorded.run(Job(task="t"))
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)[error_attributes.ERROR_TYPE] == "ConnectionError"
    (event,) = span.events
    told = dict(event.attributes or {})
    assert event.name == "exception"
    assert set(told) == {
        exception_attributes.EXCEPTION_TYPE,
        exception_attributes.EXCEPTION_MESSAGE,
        exception_attributes.EXCEPTION_STACKTRACE,
    }
    assert "ConnectionError" in str(told[exception_attributes.EXCEPTION_STACKTRACE])
    assert "hunter2" not in f"{told} {span.status.description}"


class Odd(Exception):
    pass


@pytest.mark.parametrize(
    ("raised", "outcome", "kind"),
    [
        (Snooze(delay=60), "put off", None),
        (Retry("later"), "dead", "jfast_sync.control.Retry"),
        (Cancel("customer 17 is gone"), "dead", "jfast_sync.control.Cancel"),
        (Odd("x"), "dead", f"{Odd.__module__}.Odd"),
        (SystemExit(1), "dead", "SystemExit"),
    ],
    ids=str,
)
def test_every_end_has_a_word_and_a_bounded_type(
    recorded: Recorded, raised: BaseException, outcome: str, kind: str | None
) -> None:
    @recorded.app.tasks.task("t")
    def fails() -> None:
        raise raised

    (span,) = recorded.run(Job(task="t"))
    assert attributes(span)["jfast.outcome"] == outcome
    assert attributes(span).get("error.type") == kind


def test_a_task_nobody_knows_is_a_failed_span(recorded: Recorded) -> None:
    (span,) = recorded.run(Job(task="nobody"))
    assert attributes(span)["error.type"] == "jfast_sync.errors.UnknownTaskError"


def test_a_job_that_ran_out_of_time_is_a_timeout_whatever_it_raised(recorded: Recorded) -> None:
    @recorded.app.tasks.task("t", timeout=0.05)
    def waits() -> None:
        context.current_job().wait_cancelled(20)
        raise Odd

    recorded.app.queue.enqueue(Job(task="t"))
    assert recorded.app.worker(threads=1, drain=True).run() == 0
    (span,) = recorded.spans("process")
    assert attributes(span)["error.type"] == "TimeoutError"


def test_spans_of_jobs_side_by_side_do_not_mix(recorded: Recorded) -> None:
    meet = threading.Barrier(2, timeout=20)

    @recorded.app.tasks.task("t")
    def together() -> None:
        meet.wait()
        with recorded.tracer.start_as_current_span("inside"):
            meet.wait()

    for _ in range(2):
        recorded.app.queue.enqueue(Job(task="t"))
    assert recorded.app.worker(threads=2, drain=True).run() == 0
    parents = {span.parent.span_id for span in recorded.spans("inside") if span.parent is not None}
    assert parents == {identity(span)[1] for span in recorded.spans("process")}


def test_a_process_for_one_job_joins_the_trace_and_leaves_the_span_to_the_worker(recorded: Recorded) -> None:
    app = recorded.app

    @app.tasks.task("t")
    def handler() -> None:
        with recorded.tracer.start_as_current_span("inside"):
            pass

    app.queue.enqueue(Job(task="t", trace={"traceparent": REMOTE}))
    lease: Lease = app.queue.backend.claim(1, 0.0, Selection(worker="w"))[0]
    executor = Executor(
        app.tasks,
        Transactions(app.queue.backend, None),
        app,
        WorkerOptions(),
        observers=Observers(),
        policy=Policy(),
        is_alone=True,
    )
    executor.execute(executor.begin(lease))
    (inside,) = recorded.spans()
    assert inside.parent is not None
    assert f"{inside.parent.trace_id:032x}-{inside.parent.span_id:016x}" in REMOTE


# --- metrics ---------------------------------------------------------------------------------------------------


def test_deliveries_are_counted_and_durations_measured(recorded: Recorded) -> None:
    @recorded.app.tasks.task("t")
    def fails(payload: dict[str, Any]) -> None:
        if payload["fail"]:
            raise LookupError

    recorded.run(*(Job(task="t", payload={"fail": fail}) for fail in (True, False, False)))
    measured = recorded.measured()
    common = {
        names.MESSAGING_SYSTEM: "memory",
        names.MESSAGING_OPERATION_NAME: "process",
        names.MESSAGING_DESTINATION_NAME: "default",
        "jfast.task": "t",
    }
    (consumed,) = measured[messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES]
    assert (consumed.value, dict(consumed.attributes)) == (3, common)
    points = measured[messaging_metrics.MESSAGING_PROCESS_DURATION]
    counted = {dict(point.attributes).get("error.type"): point.count for point in points}
    assert counted == {None: 2, "LookupError": 1}
    assert all(common.items() <= dict(point.attributes).items() for point in points)
    assert all(0 <= point.sum < 20 for point in points)


# --- on and off ------------------------------------------------------------------------------------------------


def test_it_is_on_where_the_plugin_is(recorded: Recorded) -> None:
    config = load_config(environ={}, overrides={"plugins": {"enabled": ["queue"]}, "queue": {"backend": "memory"}})
    with JFast(config, tasks=Registry(Declarations())) as app:
        assert app.telemetry is None
    with JFast(recorded.app.config, tasks=Registry(Declarations())) as app:
        assert isinstance(app.telemetry, Telemetry)
        app.tasks.task("t")(lambda: None)
        app.queue.enqueue(Job(task="t"))
        assert drain(app).done == 1, "without a provider nothing is recorded, and nothing fails"


def test_the_missing_package_is_said_with_the_extra(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jfast_sync.telemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingDriverError, match=r'pip install "jfast-sync\[otel\]"'):
        JFast(recorded.app.config, tasks=Registry(Declarations()))


def test_nothing_is_imported_where_it_is_off() -> None:
    code = """
import sys
from jfast_sync import Job, JFast
from jfast_sync.config import load_config
from jfast_sync.context import bind_app
from jfast_sync.tasks.registry import Registry
from jfast_sync.testing import drain
overrides = {"plugins": {"enabled": ["queue"]}, "queue": {"backend": "memory"}}
with JFast(load_config(environ={}, overrides=overrides), tasks=Registry()) as app, bind_app(app):
    app.tasks.task("t")(lambda: None)
    app.queue.enqueue(Job(task="t"))
    assert drain(app).done == 1
print([name for name in sys.modules if name.startswith("opentelemetry") or name == "jfast_sync.telemetry"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
