"""Served by gunicorn, loaded before the fork: no connection crosses it, nothing is lost, and the end is quick."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from jfast_sync import connect
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

WORKERS, CLIENTS, REQUESTS = 3, 6, 200

APP = """
from flask import Flask, request

from jfast_sync import Job
from jfast_sync.flask import JFast, get_session

app = Flask("shop")
jf = JFast(app)
assert jf.queue.stats().ready == 0  # the queue is used before the fork
with jf.session() as session:
    session.connection()


@app.post("/own/<name>")
def own(name):
    return jf.queue.enqueue(Job(task="a", id=name))


@app.post("/shared/<name>")
def shared(name):
    return jf.outbox.enqueue(get_session(), Job(task="a", id=name))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn"))


@pytest.fixture
def served(dsn: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "jfast.toml").write_text(f'[plugin.database]\ndsn = "{dsn}"\n')
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", str(WORKERS), "-b", f"{HOST}:{port}", "shop:app"]
    with (tmp_path / "log").open("wb") as log:
        master = subprocess.Popen([*command, "--no-control-socket"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(master, port), 30, what="gunicorn to serve", interval=0.05)
        yield master, port
    finally:
        master.kill()
        master.wait()
        text = (tmp_path / "log").read_text()
    assert "Traceback" not in text, text
    assert "TIMEOUT" not in text, text


def _answers(master: subprocess.Popen[bytes], port: int) -> bool:
    assert master.poll() is None, "gunicorn ended"
    try:
        return _ask(port, "GET", "/ready")[0] == 200
    except ConnectionRefusedError:
        return False


def _ask(port: int, method: str, path: str) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_jobs_enqueued_through_preloaded_workers_are_all_there(
    served: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    master, port = served
    names = [f"{way}-{number}" for number in range(REQUESTS // 2) for way in ("own", "shared")]
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda name: _ask(port, "POST", f"/{name.partition('-')[0]}/{name}"), names))
    # Every reply is its own request's: a connection shared over the fork would swap them.
    assert answers == [(200, name) for name in names]
    with connect(tmp_path) as jf:
        assert {row.job.id for row in jf.queue.inspect.jobs(limit=REQUESTS * 2)} == set(names)

    master.send_signal(signal.SIGTERM)
    assert master.wait(15) == 0  # a thread of ours that kept a worker would cost gunicorn's graceful timeout, 30 s
