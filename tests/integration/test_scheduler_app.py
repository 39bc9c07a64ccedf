"""The scheduler of an app: when it starts, what `/ready` says of it, and when it ends."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jfast_sync import JFast
from jfast_sync.config import load_config
from jfast_sync.errors import ConfigError
from jfast_sync.tasks import TaskSession, task
from jfast_sync.tasks.declarations import isolated
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with isolated():
        yield


def app(folder: Path, *plugins: str, **queue: Any) -> JFast:
    overrides: dict[str, dict[str, object]] = {
        "queue": {"scheduler": True, **queue},
        "database": {"dsn": f"sqlite:///{folder / 'jobs.db'}"},
        **({"plugins": {"enabled": [*plugins]}} if plugins else {}),
    }
    return JFast(load_config(environ={}, overrides=overrides))


def test_schedules_run_beside_an_embedded_worker(tmp_path: Path) -> None:
    ran: list[datetime] = []

    @task("beat", every=timedelta(seconds=1))
    def beat(payload: dict, session: TaskSession) -> None:
        ran.append(datetime.fromisoformat(payload["scheduled_for"]))

    with app(tmp_path) as jf:
        jf.start_worker(threads=1)
        assert jf.start_scheduler() is jf.start_scheduler()
        eventually(lambda: len(ran), until=lambda count: count >= 2)
        health = jf.checks()["queue"]()
        assert health.status == "ok"
        assert health.meta["scheduler"]["store"] == "database"
        assert list(health.meta["scheduler"]["schedules"]) == ["beat"]
    assert len(set(ran)) == len(ran)
    assert {tick.microsecond for tick in ran} == {0}
    assert "jfast-scheduler" not in {thread.name for thread in threading.enumerate()}


def test_a_schedule_declared_while_the_app_works_is_taken_up_at_once(tmp_path: Path) -> None:
    ran = threading.Event()
    with app(tmp_path) as jf:

        @jf.tasks.task("beat")
        def beat() -> None:
            ran.set()

        jf.start_worker(threads=1)
        eventually(lambda: jf.checks()["queue"]().meta["scheduler"].get("count") == 0)
        jf.tasks.schedule("beat", every=timedelta(seconds=1))
        assert ran.wait(10)  # it would have slept for half a minute


def test_a_scheduler_that_is_off_says_so_once_where_schedules_are_declared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task("beat", every=timedelta(seconds=1))(lambda: None)
    with app(tmp_path, scheduler=False) as jf:
        for _ in range(3):
            assert jf.start_scheduler() is None
        assert jf.checks()["queue"]().meta["scheduler"] == {"status": "off", "schedules": ["beat"]}
        assert jf.checks()["queue"]().status == "ok"
    assert caplog.text.count("1 schedules are declared and do not run here: set [plugin.queue] scheduler = true") == 1
    caplog.clear()
    with isolated(), app(tmp_path, scheduler=False) as jf:
        jf.start_scheduler()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_failing_schedule_degrades_the_queues_check_and_never_makes_it_unavailable(tmp_path: Path) -> None:
    task("beat", every=timedelta(seconds=1), payload={"text": "x" * 300})(lambda: None)
    with app(tmp_path, max_payload_bytes=200) as jf:
        jf.start_scheduler()
        health = eventually(jf.checks()["queue"], until=lambda found: found.status != "ok")
        assert health.status == "degraded"
        assert "schedule beat fails: PayloadError" in health.detail
        assert jf.queue.stats().ready == 0


def test_a_drain_starts_no_scheduler(tmp_path: Path) -> None:
    task("beat", every=timedelta(seconds=1))(lambda: None)
    with app(tmp_path) as jf:
        jf.start_worker(threads=1, drain=True).join(20)
        assert "scheduler" not in {thread.name for thread in threading.enumerate()}
        assert jf.checks()["queue"]().meta["scheduler"]["status"] == "off"


@pytest.mark.parametrize(("plugins", "store"), [(["queue"], "memory"), (["queue", "database"], "database")])
def test_the_store_follows_the_plugins(tmp_path: Path, plugins: list[str], store: str) -> None:
    task("beat", every=timedelta(hours=1))(lambda: None)
    backend = "memory" if store == "memory" else "auto"
    with app(tmp_path, *plugins, backend=backend) as jf:
        scheduler = jf.start_scheduler()
        assert scheduler is not None
        assert scheduler.health().meta["store"] == store


def test_ticks_in_memory_beside_a_queue_that_processes_share_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with app(tmp_path, scheduler_store="memory") as jf:
        jf.start_scheduler()
        health = jf.checks()["queue"]()
        assert health.status == health.meta["scheduler"]["status"] == "degraded"
        assert "each that schedules runs every schedule" in health.detail
    assert caplog.text.count("each that schedules runs every schedule") == 1


def test_a_wrong_schedule_stops_the_start(tmp_path: Path) -> None:
    with app(tmp_path) as jf, pytest.raises(ConfigError, match="never happen"):
        jf.tasks.schedule("beat", cron="0 0 31 2 *")


def test_a_forked_child_has_a_scheduler_of_its_own(tmp_path: Path) -> None:
    task("beat", every=timedelta(hours=1))(lambda: None)
    with app(tmp_path) as jf:
        scheduler = jf.start_scheduler()
        assert scheduler is not None
        eventually(lambda: scheduler.health().meta.get("count"))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                before = scheduler.health().detail
                own = jf.start_scheduler()
                assert own is not None
                found = own is not scheduler and own.name != scheduler.name and "before a fork" in before
                own.stop()
                os.write(write, b"yes" if found and own.join(5) else b"no")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 3) == b"yes"
        os.close(read)
        os.close(write)
        assert scheduler.health().status == "ok"
