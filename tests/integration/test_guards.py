"""The suite's own rules hold: a test that leaves something behind fails, and a missing server fails the run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.servers.clusters import _shared_memory_id, end_abandoned
from tests.servers.local import claim, sweep
from tests.servers.postgres_local import LocalPostgres
from tests.servers.postgres_programs import find_programs
from tests.servers.processes import forget
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


def _pytest(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_inner.py"
    file.write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(folder), str(file)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip


def test_a_leaking_test_fails_by_name_and_its_neighbour_does_not(tmp_path: Path) -> None:
    source = """
import subprocess, sys, threading

def test_leaks():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
    global child
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def test_is_clean():
    pass
"""
    done = _pytest(tmp_path, source)
    assert done.returncode == 1
    assert "thread 'forgotten' is still running; child process pid" in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_a_missing_server_ends_the_run_with_one_message(tmp_path: Path) -> None:
    source = "def test_a(postgres_dsn): pass\ndef test_b(postgres_dsn): pass\n"
    url = "postgresql://nobody:hunter2@127.0.0.1:1/postgres"
    done = _pytest(tmp_path, source, JFAST_TEST_POSTGRES_URL=url)
    assert done.returncode == 3
    assert (done.stdout + done.stderr).count("unset JFAST_TEST_POSTGRES_URL") == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_a_connection_left_open_fails_the_test_that_made_it(tmp_path: Path) -> None:
    source = """
import psycopg

def test_leaks(postgres_dsn):
    global kept
    kept = psycopg.connect(postgres_dsn)
"""
    done = _pytest(tmp_path, source)
    assert done.returncode == 1
    assert "dispose every engine" in done.stdout


def test_terminating_a_run_stops_its_servers(tmp_path: Path) -> None:
    file = tmp_path / "test_inner.py"
    marker = tmp_path / "pid"
    file.write_text(
        "import threading\n"
        "def test_waits(killable_postgres):\n"
        f"    open({str(marker)!r}, 'w').write(str(killable_postgres._process.pid))\n"
        "    threading.Event().wait(60)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(file)]
    # No engine is asked: the process of a binary is what could stay.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as run:
        pid = eventually(lambda: marker.exists() and marker.read_text(), 30, what="the inner test to have its server")
        server = psutil.Process(int(str(pid)))
        run.terminate()
        run.communicate(timeout=30)
    assert run.returncode == 143
    assert not server.is_running()


def test_a_cluster_without_an_owner_is_ended_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.postgres_local._PREFIX", f"jfast-orphan-{os.getpid()}-")
    server = LocalPostgres(find_programs())
    server.start()
    folder, process = server._folder, server._process
    assert process is not None
    segment = _shared_memory_id(folder / "data" / "postmaster.pid")
    sweep(folder.parent, folder.name, end_abandoned)
    assert server.running  # owned: left alone
    server._owner.close()  # what the kernel does when the session is killed
    sweep(folder.parent, folder.name, end_abandoned)
    process.wait(timeout=10)
    forget(process.pid)
    assert not folder.exists()
    segments = subprocess.run(["ipcs", "-m"], capture_output=True, text=True, check=True).stdout.split()
    assert segment not in segments


def test_a_folder_that_is_being_claimed_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel test processes start their servers in the same moment."""
    folder = tmp_path / "jfast-x"
    folder.mkdir()
    lock = fcntl.flock

    def swept_meanwhile(file: object, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        sweep(tmp_path, "jfast-", end_abandoned)
        lock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", swept_meanwhile)
    with claim(folder):
        assert folder.exists()


def test_a_folder_in_use_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "jfast-x").mkdir()
    with claim(tmp_path / "jfast-x"):
        sweep(tmp_path, "jfast-", end_abandoned)
        assert (tmp_path / "jfast-x").exists()
    sweep(tmp_path, "jfast-", end_abandoned)
    assert not (tmp_path / "jfast-x").exists()
