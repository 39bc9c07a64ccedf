"""A Flask app under gunicorn, preloaded and recycled every few requests, with a worker inside every serving process."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from tests.servers.network import HOST, free_port
from tests.waiting import eventually

_APP = '''
"""A Flask app that uses its database and its queue at import: preloaded, that is before the fork."""

from flask import Flask, request
from sqlalchemy import text

from jfast_sync import Job
from jfast_sync.flask import JFast

app = Flask(__name__)
jf = JFast(app)
with jf.session() as session:
    session.execute(text("SELECT 1")).scalar_one()
jf.queue.enqueue(Job(task="work.quick", id="from-the-master"))


@app.post("/jobs/<id>")
def enqueue(id):
    job = Job(task="work.quick", id=id, payload={"seconds": float(request.args["seconds"])})
    found = jf.request_session.execute(text("SELECT CAST(:id AS TEXT)"), {"id": id}).scalar_one()
    jf.outbox.enqueue(jf.request_session, job)
    return {"id": found}
'''

_CONFIGURATION = """
bind = "{bind}"
workers = 2
worker_class = "gthread"
threads = 4
preload_app = True
max_requests = {max_requests}
graceful_timeout = 10
control_socket_disable = True


def post_worker_init(worker):
    worker.wsgi.extensions["jfast"].start_worker(threads=2, grace=0.1)
    worker.log.info("serves and works")
"""


@pytest.fixture
def serve(new_project, dsn):
    """Start the app under gunicorn; return the project, the master, and a function that posts a job."""

    def start(max_requests):
        project = new_project(dsn)
        port = free_port()
        (project.folder / "main.py").write_text(_APP)
        (project.folder / "gunicorn.conf.py").write_text(
            _CONFIGURATION.format(bind=f"{HOST}:{port}", max_requests=max_requests)
        )
        master = project.run("gunicorn", "gunicorn", "main:app")
        _wait_until_both_serve(master)
        return project, master, lambda job_id, seconds=0: post(port, job_id, seconds)

    return start


def post(port, job_id, seconds):
    """Post one job, as a client that tries again with the same id when a connection breaks; return the answer."""
    for attempt in count(1):
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
        try:
            connection.request("POST", f"/jobs/{job_id}?seconds={seconds}")
            answer = connection.getresponse()
            body = answer.read()
        except (ConnectionError, http.client.HTTPException):
            if attempt == 5:
                raise
            continue
        finally:
            connection.close()
        assert answer.status == 200, body
        return json.loads(body)["id"]
    raise AssertionError


@pytest.mark.parametrize("jobs", [40, pytest.param(400, marks=pytest.mark.long)])
def test_recycled_processes_lose_and_repeat_nothing(serve, jobs):
    project, master, post_job = serve(max_requests=5)
    ids = [f"job-{number}" for number in range(jobs)]

    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda job_id: post_job(job_id, 0.1), ids))

    assert answers == ids
    project.wait_until_done([*ids, "from-the-master"], 60)
    project.assert_once([*ids, "from-the-master"])
    # What a recycling interrupted was given back with its attempt.
    assert {event.attempts for event in project.events("start")} == {1}
    assert len({event.pid for event in project.events("start")}) >= jobs / 5 / 3
    assert "Traceback" not in master.log
    _stop(master)
    assert project.store.jobs() == []


def test_an_idle_server_is_gone_at_once(serve):
    project, master, post_job = serve(max_requests=0)
    post_job("one")
    project.wait_until_done(["one", "from-the-master"])

    took = [_stop(master)]
    for _ in range(2):
        master = project.run("gunicorn", "gunicorn", "main:app")
        _wait_until_both_serve(master)
        took.append(_stop(master))

    # gunicorn itself takes half a second; the fastest of three shows that nothing was waited for.
    assert min(took) <= 2
    assert max(took) < 10
    assert "WORKER TIMEOUT" not in master.log
    assert "Traceback" not in master.log


def test_what_runs_when_the_server_stops_is_given_back(serve):
    project, master, post_job = serve(max_requests=0)
    post_job("long", 600)
    project.wait_for("start", ["long"])

    took = _stop(master)

    assert took <= 6
    row = project.store.job("long")
    assert (row.status, row.attempts) == ("pending", 0)


def _wait_until_both_serve(master):
    """A signal that reaches a process of gunicorn's between its fork and its handlers is lost."""
    master.wait_for_log(r"(?s)serves and works.*serves and works", 20)


def _stop(master):
    children = master.children()
    since = master.terminate()
    assert master.wait(15) == 0
    took = time.monotonic() - since
    eventually(lambda: [child for child in children if child.is_running()], 5, until=lambda left: not left)
    return took
