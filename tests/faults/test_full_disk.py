"""A full disk under SQLite: one clear error, nothing lost, and it goes on when there is room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event

from jfast_sync import Job
from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.errors import UnavailableError
from jfast_sync.tasks.registry import Registry


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB; only root can mount one."""
    assert os.geteuid() == 0, "this round mounts a small file system: run it as root, in a container for example"
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def limited(path, pages):
    """An engine whose file may not grow past so many pages: SQLite then reports a full disk, for everybody to test."""
    engine = create_engine(f"sqlite:///{path}", hide_parameters=True)

    @event.listens_for(engine, "checkout")
    def limit(connection, _record, _proxy):
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")

    return engine


def test_a_full_file_refuses_in_one_sentence_and_takes_jobs_again_when_there_is_room(sqlite_path):
    pages = [10_000]
    engine = limited(sqlite_path, pages)
    with JFast(load_config(), tasks=Registry(), engine=engine) as jfast:
        jfast.setup()
        pages[0] = 60
        accepted: list[str] = []
        with pytest.raises(UnavailableError) as error:
            while len(accepted) < 1000:
                accepted.append(jfast.queue.enqueue(Job(task="work.quick", payload={"text": "x" * 2000})))
        assert "full" in str(error.value)
        assert "INSERT" not in str(error.value)
        assert jfast.queue.stats().ready == len(accepted)
        pages[0] = 10_000
        accepted.append(jfast.queue.enqueue(Job(task="work.quick")))
        assert jfast.queue.stats().ready == len(accepted)
    engine.dispose()


@pytest.mark.long
def test_a_full_disk_loses_nothing(small_disk, new_project):
    project = new_project(f"sqlite:///{small_disk}/jobs.db")
    accepted = project.enqueue("quick", count=50)
    ballast = fill(small_disk)

    with pytest.raises(UnavailableError) as error:
        for _ in range(2000):
            job = Job(task="work.quick", payload={"text": "x" * 2000})
            project.jfast.queue.enqueue(job)
            accepted.append(job.id)

    assert "full" in str(error.value)
    assert "INSERT" not in str(error.value)
    worker = project.worker("--threads", "2")
    worker.wait_for_log(r"(?i)full")
    assert worker.running
    ballast.unlink()

    project.wait_until_done(accepted, 30)
    project.assert_once(accepted)
    assert worker.running
