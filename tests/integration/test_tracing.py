"""Traces across processes: what a handler does in a process of its own is in the trace, and gets out of it."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import text

from jfast_sync.app import load
from jfast_sync.job import Job
from jfast_sync.tasks.declarations import isolated

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# An exporter that waits for an hour before it sends by itself; what it sends ends in a file.
TASKS = """
import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from jfast_sync.tasks import task

provider = None


@task("traced")
def traced() -> None:
    global provider
    file = (Path(__file__).parents[2] / f"spans-{os.getpid()}").open("w")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=file), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("shop").start_as_current_span("inside"):
        pass
"""


def test_spans_of_a_process_for_one_job_are_sent_and_join_the_trace(tmp_path: Path) -> None:
    module = tmp_path / "modules" / "traced"
    module.mkdir(parents=True)
    (module / "tasks.py").write_text(TASKS)
    (tmp_path / "jfast.toml").write_text(
        '[plugins]\nenabled = ["database", "queue", "telemetry"]\n\n'
        f'[plugin.database]\ndsn = "sqlite:///{tmp_path}/jfast.db"\n'
    )
    with isolated(), load(config_path=tmp_path) as app:
        app.queue.enqueue(Job(task="traced", trace={"traceparent": REMOTE}, max_attempts=3))
        with app.session() as session:
            session.execute(text("UPDATE jfast_jobs SET attempts = 2, lapses = 2"))
        worker = app.worker(drain=True, threads=1)
        assert worker.run() == 0
        assert worker.counts.done == 1
    (file,) = tmp_path.glob("spans-*")
    span = json.loads(file.read_text())
    assert span["name"] == "inside"
    assert f"{span['context']['trace_id'][2:]}-{span['parent_id'][2:]}" in REMOTE
