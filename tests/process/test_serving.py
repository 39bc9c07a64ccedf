"""Background threads start where a process begins to serve, before any request, and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys

import psutil
import pytest

from tests.process.workers import PROGRAMS
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

_APP = '''
"""A Flask app that says which process starts its relay, and when a request comes."""

import os
import pathlib

from flask import Flask

from jfast_sync.flask import JFast
from jfast_sync.outbox.relay import Relay

NOTES = pathlib.Path(__file__).with_name("notes")
plain = Relay.start


def note(what):
    with NOTES.open("a") as notes:
        print(what, os.getpid(), file=notes)


def start(relay):
    note("relay")
    plain(relay)


Relay.start = start
note("import")


def create_app():
    app = Flask(__name__)
    JFast(app, overrides={"database": {"dsn": "sqlite:///served.db"}})
    return app


app = create_app()


@app.get("/")
def index():
    note("request")
    return ""


if __name__ == "__main__":
    app.run(port=int(os.environ["PORT"]))
'''


@pytest.fixture
def serve(tmp_path):
    (tmp_path / "main.py").write_text(_APP)
    started = []

    def start(*command, **environment):
        log = (tmp_path / "log").open("w")
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, env={"PATH": str(PROGRAMS), "HOME": "/", **environment}
        )
        started.append((process, log))
        return process

    yield start
    for process, log in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()
        log.close()


def notes(folder):
    file = folder / "notes"
    found = re.findall(r"(\w+) (\d+)", file.read_text()) if file.exists() else []
    return [(what, int(pid)) for what, pid in found]


def relays(folder, count):
    return eventually(
        lambda: [pid for what, pid in notes(folder) if what == "relay"],
        20,
        until=lambda found: len(found) >= count,
        what=f"{count} relays; {(folder / 'log').read_text()}",
    )


@pytest.mark.parametrize("kind", ["sync", "gthread"])
@pytest.mark.parametrize("preload", [False, True])
def test_every_gunicorn_worker_and_not_its_master(serve, tmp_path, kind, preload):
    command = [str(PROGRAMS / "gunicorn"), "-b", f"{HOST}:{free_port()}", "-w", "2", "-k", kind, "main:app"]
    master = serve(*command, *(["--preload"] if preload else []), FLASK_DEBUG="1")

    found = relays(tmp_path, 2)

    children = {child.pid for child in psutil.Process(master.pid).children()}
    assert len(found) == 2 and set(found) == children
    assert not [what for what, _ in notes(tmp_path) if what == "request"]

    # A new generation after the first has begun to serve starts its own.
    next(iter(psutil.Process(master.pid).children())).kill()
    assert len(set(relays(tmp_path, 3))) == 3


def test_the_reloaders_child_and_not_its_parent(serve, tmp_path):
    port = free_port()
    parent = serve(str(PROGRAMS / "flask"), "--app", "main", "run", "--debug", "--port", str(port))

    found = relays(tmp_path, 1)

    assert found != [parent.pid]
    assert len(found) == 1
    assert [pid for what, pid in notes(tmp_path) if what == "import"][-1] == found[0]


def test_flask_run_without_a_reloader_and_app_run(serve, tmp_path):
    first = serve(str(PROGRAMS / "flask"), "--app", "main", "run", "--port", str(free_port()))
    assert relays(tmp_path, 1) == [first.pid]

    second = serve(sys.executable, "main.py", PORT=str(free_port()))
    assert set(relays(tmp_path, 2)) == {first.pid, second.pid}


def test_no_command_and_no_test_client_starts_one(serve, tmp_path):
    script = "import main; c = main.app.test_client(); c.get('/'); c.get('/ready')"
    for command in (
        [str(PROGRAMS / "jfast-sync"), "stats"],
        [str(PROGRAMS / "flask"), "--app", "main", "routes"],
        [sys.executable, "-c", script],
    ):
        assert serve(*command).wait(30) == 0, (tmp_path / "log").read_text()

    assert [what for what, _ in notes(tmp_path)] == ["import", "import", "import", "request"]


def test_an_unknown_servers_first_request_starts_it(serve, tmp_path):
    script = (
        "import main, sys; from wsgiref.simple_server import make_server; "
        "from urllib.request import urlopen; from threading import Thread; "
        "server = make_server('127.0.0.1', 0, main.app); Thread(target=server.handle_request).start(); "
        "urlopen('http://127.0.0.1:%d/' % server.server_port).read()"
    )
    assert serve(sys.executable, "-c", script).wait(30) == 0, (tmp_path / "log").read_text()

    assert [what for what, _ in notes(tmp_path)] == ["import", "relay", "request"]


#: uWSGI as an app sees it, and a fork that Python is not told of.
_UWSGI = """
import os
has_threads = int(os.environ["THREADS"])
worker_id = lambda: int(os.getpid() != master)
master = os.getpid()
post_fork_hook = lambda: print("the app's own hook")
"""
_FORK = """
import ctypes, os, main, uwsgi
database = main.app.extensions["jfast"].database
pools = [database.engine.pool, database.control.pool]
child = ctypes.PyDLL(None).fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
uwsgi.post_fork_hook()
kept = [pool for pool in pools if pool in (database.engine.pool, database.control.pool)]
print(len(kept), "pools are the parent's", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("threads", [1, 0])
def test_a_fork_that_python_is_not_told_of(serve, tmp_path, threads):
    (tmp_path / "uwsgi.py").write_text(_UWSGI)
    master = serve(sys.executable, "-c", _FORK, THREADS=str(threads), PYTHONUNBUFFERED="1")
    log = tmp_path / "log"
    assert master.wait(30) == 0, log.read_text()

    assert "0 pools are the parent's" in log.read_text()
    assert "the app's own hook" in log.read_text()
    assert [what for what, pid in notes(tmp_path) if pid != master.pid] == ["relay"] * threads
    assert ("start it with --enable-threads" in log.read_text()) == (not threads)
