"""uWSGI, which forks without telling Python and loads lazy apps after it: ticks, relay, connections, end."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.process.fleet import SECOND, Fleet, assert_each_tick_once, between_ticks, fleet
from tests.process.workers import PROGRAMS, WorkerProcess
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

__all__ = ["fleet"]

pytestmark = pytest.mark.long

BOTH = pytest.mark.parametrize("fleet", ["sqlite", "postgresql"], indirect=True)
WAYS = pytest.mark.parametrize(
    "options", [[], ["--lazy-apps"], ["--threads", "2"]], ids=["preloaded", "lazy", "with threads"]
)


class Site:
    """uWSGI with two serving processes below a master."""

    def __init__(self, fleet: Fleet, *options: str) -> None:
        self.port = free_port()
        self.pidfile = fleet.folder / "uwsgi.pid"
        command = ["--http-socket", f"{HOST}:{self.port}", "--master", "--processes", "2", "--enable-threads"]
        command += ["--pidfile", str(self.pidfile), "--module", "main:app", "--need-app", *options]
        # A virtual environment's uWSGI looks for its Python beside the one it was built with.
        self.master: WorkerProcess = fleet.serve("uwsgi", *command, "--home", sys.prefix)
        self.workers = eventually(self.master.children, 30, until=lambda found: len(found) == 2, what="two processes")
        loads = 2 if "--lazy-apps" in options else 1
        eventually(lambda: self.master.log.count("WSGI app 0"), 30, until=lambda n: n == loads, what="loaded apps")

    def ask(self, method: str, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def ends_soon(self, started: float) -> None:
        assert self.master.wait(8) == 0
        assert time.monotonic() - started < 5
        assert "Traceback" not in self.master.log


@BOTH
@WAYS
def test_each_tick_once_before_any_request_and_after_a_worker_is_killed(fleet: Fleet, options: list[str]) -> None:
    site = Site(fleet, *options, "--die-on-term")
    fleet.wait_for_ticks(3)
    assert site.master.process.num_threads() == 1
    between_ticks()
    site.workers[0].kill()
    eventually(site.master.children, 10, until=lambda found: len(found) == 2, what="another process for the killed one")
    ticks = fleet.wait_for_ticks(4)
    assert_each_tick_once(ticks, longest_gap=3 * SECOND)
    assert site.master.process.num_threads() == 1
    ready = site.ask("GET", "/ready")
    assert ready["status"] == "ok"
    assert ready["checks"]["queue"]["meta"]["scheduler"]["status"] == "ok"
    assert ready["checks"]["outbox"]["meta"]["relay"] == "running"
    site.ends_soon(site.master.terminate())


@BOTH
@WAYS
def test_stop_ends_it_within_seconds(fleet: Fleet, options: list[str]) -> None:
    site = Site(fleet, *options)
    fleet.wait_for_ticks(1)
    started = time.monotonic()
    subprocess.run([PROGRAMS / "uwsgi", "--stop", site.pidfile], check=True, timeout=10)
    site.ends_soon(started)


@pytest.mark.parametrize("fleet", ["postgresql"], indirect=True)
def test_a_connection_opened_before_the_fork_is_nobodys_after_it(fleet: Fleet) -> None:
    site = Site(fleet)
    seen: dict[int, set[int]] = {}

    def both() -> bool:
        answer = site.ask("GET", "/connection")
        seen.setdefault(answer["pid"], set()).add(answer["server"])
        return len(seen) == 2

    eventually(both, 30, what="an answer of each process")
    first, second = seen.values()
    assert not first & second
    subprocess.run([PROGRAMS / "uwsgi", "--stop", site.pidfile], check=True, timeout=10)
    site.master.wait(8)


@BOTH
@WAYS
def test_the_relay_brings_a_requests_job_to_a_queue_elsewhere(fleet: Fleet, redis_url: str, options: list[str]) -> None:
    config = (fleet.folder / "jfast.toml").read_text().replace("[plugin.queue]", '[plugin.queue]\nbackend = "redis"')
    config = (
        f'[plugins]\nenabled = ["database", "outbox", "queue", "cache"]\n{config}[plugin.cache]\nurl = "{redis_url}"\n'
    )
    (fleet.folder / "jfast.toml").write_text(config)
    site = Site(fleet, *options, "--die-on-term")
    for number in range(20):
        site.ask("POST", f"/jobs/{number}")

    def outbox() -> dict[str, Any]:
        meta: dict[str, Any] = site.ask("GET", "/ready")["checks"]["outbox"]["meta"]
        return meta

    eventually(outbox, 10, until=lambda meta: (meta["pending"], meta["published"]) == (0, 20), what="20 sent")
    site.ends_soon(site.master.terminate())
