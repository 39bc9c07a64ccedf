"""A worker inside a program: it goes with the program, and the program may fork."""

from __future__ import annotations

import signal
import time

import pytest

_FORKS = '''
"""Forks children that enqueue, while the threads of a worker in this process are busy."""

import os
import time

from jfast_sync import Job, connect

with connect() as jf:
    for number in range(50):
        jf.queue.enqueue(Job(task="work.quick", id=f"parent-{number}", payload={"seconds": 0.02}))
    jf.start_worker(threads=4)
    children = []
    for number in range(30):
        child = os.fork()
        if child == 0:
            jf.queue.enqueue(Job(task="work.quick", id=f"child-{number}"))
            os._exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    print("children ended", flush=True)
    while jf.queue.stats().ready or jf.queue.stats().running:
        time.sleep(0.05)
print("closed", flush=True)
'''

_STOPS = '''
"""Ends while a job of the worker inside runs."""

import sys
import time

from jfast_sync import connect

jf = connect()
worker = jf.start_worker(threads=2, grace=0.2)
while not worker.running:
    time.sleep(0.01)
print("works", flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
'''


def run(project, source, *arguments):
    (project.folder / "program.py").write_text(source)
    return project.run("program", "python", "program.py", *arguments)


def test_a_program_with_a_busy_worker_forks(new_project, postgres_dsn):
    """On SQLite fork first: a child inherits the library's locks as another thread held them (docs/decisions)."""
    project = new_project(postgres_dsn)
    program = run(project, _FORKS)
    program.wait_for_log("children ended")

    assert program.wait(20) == 0

    assert "Traceback" not in program.log
    project.assert_once([*(f"parent-{number}" for number in range(50)), *(f"child-{number}" for number in range(30))])
    assert set(project.starts().values()) == {1}
    assert {event.pid for event in project.events("start")} == {program.pid}


def test_a_program_that_ends_gives_its_jobs_back(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn)
    [job] = project.enqueue("blocked")
    program = run(project, _STOPS, "ends")

    since = time.monotonic()
    assert program.wait(10) == 0

    assert time.monotonic() - since <= 6
    assert (project.store.job(job).status, project.store.job(job).attempts) == ("pending", 0)


def test_a_worker_inside_leaves_the_signals_of_the_program_alone(new_project, sqlite_dsn):
    project = new_project(sqlite_dsn, visibility_timeout=1)
    [job] = project.enqueue("blocked_first")
    program = run(project, _STOPS, "waits")
    program.wait_for_log("works")

    program.terminate()

    assert program.wait(5) == -signal.SIGTERM
    project.worker()
    project.wait_until_done([job])
    project.assert_once([job])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_worker_whose_output_nobody_reads_any_more_goes_on(new_project, sqlite_dsn, stream):
    project = new_project(sqlite_dsn)
    redirect = "2>/dev/null |" if stream == "stdout" else "2>&1 >/dev/null |"
    command = f"jfast-sync worker --debug {redirect} head -c 1 >/dev/null"
    worker = project.run("shell", "python", "-c", _SHELL, command)
    jobs = project.enqueue("quick", {"seconds": 0.01}, count=30)

    project.wait_until_done(jobs)

    project.assert_once(jobs)
    assert worker.running
    [inside] = {event.pid for event in project.events("start")}
    [process] = [child for child in worker.children() if child.pid == inside]
    process.terminate()
    process.wait(8)
    assert project.store.jobs() == []


_SHELL = """
import os, sys
from pathlib import Path
os.environ["PATH"] = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
os.execvp("bash", ["bash", "-c", sys.argv[1]])
"""
