"""The SQL queue between processes: waking within milliseconds, and connections that survive a fork."""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest
from sqlalchemy import text

from jfast_sync.job import Job
from jfast_sync.queues.sql import SqlQueue
from tests.waiting import eventually

from .sql_support import ANY, claim, make_queue, put, start_python

CLAIMER = """
import sys, time
from jfast_sync.ports import Selection
from jfast_sync.queues.sql import SqlQueue
from jfast_sync.outcome import Done, Settlement
from jfast_sync.sql.engine import Database
queue = SqlQueue(Database(sys.argv[1]), poll_interval=60.0)
print("ready", flush=True)
while True:
    leases = queue.claim(1, 30.0, Selection(worker="other"))
    print(time.monotonic(), flush=True)
    if leases[0].job.task == "end":
        break
    queue.settle([Settlement(leases[0], Done())])
queue.close()
"""


@pytest.mark.timed
def test_a_job_wakes_an_idle_process_within_milliseconds(dsn: str) -> None:
    queue = make_queue(dsn)
    other = start_python(CLAIMER, dsn)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    delays = []
    for _ in range(21):
        wait_until_idle(queue)
        sent = time.monotonic()
        put(queue)
        delays.append(float(other.stdout.readline()) - sent)
    wait_until_idle(queue)
    queue.enqueue([Job(task="end", max_attempts=1)])
    _, err = other.communicate(timeout=30)
    assert other.returncode == 0, err
    assert statistics.median(delays) < 0.02, delays
    queue.close()


def wait_until_idle(queue: SqlQueue) -> None:
    """Wait until the other process has settled what it had and waits again, ready to be woken."""
    eventually(lambda: queue.stats().running == 0, what="the other process to have settled")
    if queue.backend == "postgresql":
        listening = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'")
        eventually(lambda: queue.database.transact(lambda c: c.execute(listening).scalar()), what="LISTEN")
    else:
        from jfast_sync.queues.wake_sqlite import _folder

        folder = _folder(queue.database.path or "")
        eventually(lambda: folder.is_dir() and list(folder.iterdir()), what="a socket to be woken by")


def test_a_socket_nobody_reads_any_more_is_removed(sqlite_queue: SqlQueue) -> None:
    from jfast_sync.queues.wake_sqlite import SqliteListener, _folder

    path = sqlite_queue.database.path or ""
    listener = SqliteListener(path)
    assert listener.prepare() is not None
    assert listener._socket is not None
    listener._socket.close()  # as when its process is killed: the name stays
    assert len(list(_folder(path).iterdir())) == 1
    put(sqlite_queue)
    assert not _folder(path).exists()


def test_the_folder_of_sockets_goes_with_the_last_listener(sqlite_queue: SqlQueue) -> None:
    from jfast_sync.queues.wake_sqlite import SqliteListener, _folder

    path = sqlite_queue.database.path or ""
    first, second = SqliteListener(path), SqliteListener(path)
    assert first.prepare() is not None
    assert second.prepare() is not None
    assert _folder(path).stat().st_mode & 0o777 == 0o700
    first.close()
    assert len(list(_folder(path).iterdir())) == 1
    second.close()
    assert not _folder(path).exists()
    assert first.prepare() is not None
    first.close()


def test_listeners_that_come_and_go_do_not_take_the_folder_from_each_other(sqlite_queue: SqlQueue) -> None:
    from jfast_sync.queues.wake_sqlite import SqliteListener

    path = sqlite_queue.database.path or ""
    failed: list[int] = []

    def come_and_go() -> None:
        for turn in range(200):
            listener = SqliteListener(path)
            if listener.prepare() is None:
                failed.append(turn)
            listener.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.timed
def test_a_delayed_job_starts_at_its_time_without_any_message(queue: SqlQueue) -> None:
    from datetime import timedelta

    put(queue, delay=timedelta(seconds=0.4))
    started = time.monotonic()
    assert len(claim(queue, 1, 20.0)) == 1
    assert 0.35 < time.monotonic() - started < 0.7


def test_wake_ends_a_wait_and_may_come_before_it(queue: SqlQueue) -> None:
    started = time.monotonic()
    waker = threading.Timer(0.1, queue.wake)
    waker.start()
    assert queue.claim(1, 30.0, ANY) == []
    waker.join()
    queue.wake()
    assert queue.claim(1, 30.0, ANY) == []
    assert time.monotonic() - started < 10


def test_forked_children_use_connections_of_their_own(queue: SqlQueue) -> None:
    """The parent's connections are open when it forks, and on PostgreSQL a thread of it is using one."""
    put(queue)
    stop = threading.Event()

    def busy() -> None:
        # Not on SQLite: a fork while another thread is inside that library leaves its global locks held in the child.
        while not stop.wait(0.0 if queue.backend == "postgresql" else 60.0):
            queue.stats()

    thread = threading.Thread(target=busy)
    thread.start()
    children = []
    for number in range(20):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                stored = queue.enqueue([Job(task="t", id=f"child-{number}", max_attempts=1)])
                code = 0 if stored == [f"child-{number}"] else 2
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    thread.join(10)
    assert codes == [0] * 20
    assert queue.stats().ready == 21
    if queue.backend == "sqlite":
        with queue.database.session() as session:
            assert session.execute(text("PRAGMA integrity_check")).scalar() == "ok"
