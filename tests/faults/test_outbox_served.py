"""Requests that write and enqueue in one transaction, served by processes that are killed meanwhile.

What counts as committed is read from the rows the requests wrote, not from their answers: a process that was killed
after a commit has answered nobody. What counts as executed are rows that the jobs wrote through their own sessions.
"""

from __future__ import annotations

import faulthandler
import http.client
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.process.project import Project
from tests.process.rabbitmq_project import RabbitProject
from tests.process.redis_project import RedisProject
from tests.process.workers import WorkerProcess
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

_CLIENTS: Final = 16
_APP = """
from flask import Flask
from sqlalchemy import text

from jfast_sync import Job
from jfast_sync.flask import JFast, get_session

app = Flask(__name__)
jf = JFast(app)
with jf.session() as session:  # used before the fork, where it is preloaded
    session.execute(text("SELECT 1"))


class OnPurpose(Exception):
    pass


@app.errorhandler(OnPurpose)
def refused(error):
    return {}, 418


@app.post("/orders/<int:number>")
def order(number):
    session = get_session()
    session.execute(text("INSERT INTO orders (job_id) VALUES (:id)"), {"id": f"job-{number}"})
    jf.outbox.enqueue(session, Job(task="work.quick", id=f"job-{number}", payload={"seconds": 0.005}))
    if number % 6 == 0:
        raise OnPurpose
    return {}, 409 if number % 6 == 3 else 200
"""
_GUNICORN = """
bind = "{bind}"
workers = {workers}
worker_class = "gthread"
threads = 4
preload_app = {preload}
timeout = 120
control_socket_disable = True


def post_worker_init(worker):
    worker.wsgi.extensions["jfast"].start_worker(threads=2)
    worker.log.info("serves and works")
"""


@dataclass
class Site:
    """A project whose app gunicorn serves; every serving process has a relay and a worker inside."""

    project: Project
    master: WorkerProcess
    port: int
    answers: dict[int, int | None] = field(default_factory=dict)
    kills: int = 0
    seconds: float = 0.0

    def ask(self, number: int) -> None:
        """Send one request, once; note its status, None where the connection was cut."""
        status: int | None = None
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        with suppress(ConnectionError, http.client.HTTPException):
            connection.request("POST", f"/orders/{number}")
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        connection.close()
        self.answers[number] = status

    def kill_one(self) -> None:
        """Kill one of the processes that serve; one that is still loading the app has nothing to lose."""
        began = {int(pid) for pid in re.findall(r"\[(\d+)\] \[INFO\] serves and works", self.master.log)}
        serving = [child for child in self.master.process.children() if child.pid in began]
        if serving:
            with suppress(psutil.NoSuchProcess):
                random.choice(serving).kill()
                self.kills += 1

    @contextmanager
    def killing(self, every: float) -> Iterator[None]:
        """Kill one serving process again and again inside the block."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(every):
                self.kill_one()

        killer = threading.Thread(target=run, name="killer")
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()

    @contextmanager
    def asking(self, requests: int) -> Iterator[list[Future[None]]]:
        """Send requests by concurrent clients inside the block."""
        began = time.monotonic()
        with ThreadPoolExecutor(_CLIENTS) as clients:
            yield [clients.submit(self.ask, number) for number in range(requests)]
        self.seconds = time.monotonic() - began

    def assert_executed_is_committed(self, requests: int) -> None:
        """Compare the rows of the requests with those of the jobs, when nothing is left to do; stop the server."""
        committed = Counter(row[0] for row in self.project.store.rows("SELECT job_id FROM orders"))
        self._assert_answers_are_true(requests, committed)
        self._wait_until_over(set(committed))
        self._report(committed)
        self.master.terminate()
        assert self.master.wait(60) == 0
        assert self.project.store.effects() == committed
        assert set(self.project.starts()) == set(committed)
        stats = self.project.jfast.queue.stats()
        assert (stats.ready, stats.delayed, stats.dead) == (0, 0, 0)
        assert "Traceback" not in self.master.log

    def _assert_answers_are_true(self, requests: int, committed: Counter[str]) -> None:
        assert len(self.answers) == requests
        assert set(committed.values()) == {1}
        numbers = {int(job_id.removeprefix("job-")) for job_id in committed}
        assert not {number for number in numbers if number % 3 == 0}
        assert {number for number, status in self.answers.items() if status == 200} <= numbers
        expected = {0: 418, 3: 409}
        odd = {n: status for n, status in self.answers.items() if status not in (None, expected.get(n % 6, 200))}
        assert odd == {}

    def _wait_until_over(self, job_ids: set[str]) -> None:
        """Wait until every job has had its effect, and neither outbox nor queue has anything left."""
        project = self.project
        eventually(
            lambda: len(job_ids - set(project.store.effects())), 150, until=lambda left: left == 0,
            what="effects of all", interval=0.1,
        )  # fmt: skip
        pending = "SELECT count(*) FROM jfast_outbox WHERE status <> 'published'"
        eventually(lambda: project.store.rows(pending), 150, until=lambda rows: rows == [(0,)], what="an empty outbox")

        def left() -> int:
            stats = project.jfast.queue.stats()
            return int(stats.ready + stats.delayed + stats.running)

        eventually(left, 60, until=lambda count: count == 0, what="an empty queue", interval=0.1)

    def _report(self, committed: Counter[str]) -> None:
        statuses = Counter("cut" if status is None else str(status) for status in self.answers.values())
        effects, starts = self.project.store.effects(), self.project.starts()
        print(
            f"{len(self.answers)} requests in {self.seconds:.1f} s {dict(sorted(statuses.items()))}, {self.kills} "
            f"kills: {committed.total()} committed, {effects.total()} effects of {len(effects)} jobs, "
            f"{starts.total()} starts, {sum(count > 1 for count in starts.values())} jobs started again"
        )


@pytest.fixture(params=["postgresql", "redis", "rabbitmq"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """A project with its database on PostgreSQL, its queue there, in Redis or in RabbitMQ; or all of it in SQLite."""
    dsn = request.getfixturevalue("sqlite_dsn" if request.param == "sqlite" else "postgres_dsn")
    make: Callable[[], Project]
    match request.param:
        case "redis":
            make = partial(RedisProject, tmp_path / "project", dsn, request.getfixturevalue("redis_url"))
        case "rabbitmq":
            url = request.getfixturevalue("rabbitmq_url")
            name = request.getfixturevalue("rabbitmq_server").new_name()
            make = partial(RabbitProject, tmp_path / "project", dsn, url, name=name)
        case _:
            make = partial(Project, tmp_path / "project", dsn)
    made = make()
    yield made
    made.close()


@pytest.fixture
def serve(project: Project) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:

        def start(*, workers: int, preload: bool, visibility_timeout: float) -> Site:
            port = free_port()
            project.store.execute("CREATE TABLE orders (job_id text NOT NULL)")
            (project.folder / "main.py").write_text(_APP)
            configuration = _GUNICORN.format(bind=f"{HOST}:{port}", workers=workers, preload=preload)
            (project.folder / "gunicorn.conf.py").write_text(configuration)
            options = {
                "JFAST_DB_POOL_SIZE": "6",
                "JFAST_QUEUE_VISIBILITY_TIMEOUT": str(visibility_timeout),
            }
            master = project.run("gunicorn", "gunicorn", "main:app", **options)
            stack.callback(master.close)
            site = Site(project, master, port)
            eventually(
                lambda: master.log.count("serves and works"), 60, until=lambda n: n >= workers, what="all to serve"
            )
            return site

        yield start


@pytest.mark.parametrize(
    ("project", "preload"),
    [("sqlite", False), ("postgresql", True), ("redis", False), ("rabbitmq", True)],
    indirect=["project"],
)
def test_a_killed_process_takes_no_request_with_it(serve: Callable[..., Site], project: Project, preload: bool) -> None:
    site = serve(workers=2, preload=preload, visibility_timeout=1)
    with site.asking(200) as asked:
        eventually(lambda: len(site.answers), 60, until=lambda count: count >= 100)
        site.kill_one()
        for one in asked:
            one.result()
    if project.store.dialect == "postgresql":  # leases end
        project.store.execute("UPDATE jfast_outbox SET available_at = now() WHERE status = 'pending'")
    site.assert_executed_is_committed(200)


@pytest.mark.long
@pytest.mark.parametrize("preload", [False, True], ids=["loaded by each", "preloaded"])
def test_processes_killed_every_second(serve: Callable[..., Site], preload: bool) -> None:
    # On a busy machine longer than pytest watches over a test; each wait below has a deadline of its own.
    faulthandler.cancel_dump_traceback_later()
    site = serve(workers=8, preload=preload, visibility_timeout=5)
    with site.asking(5_000) as asked, site.killing(every=1.0):
        for one in asked:
            one.result()
    site.assert_executed_is_committed(5_000)
