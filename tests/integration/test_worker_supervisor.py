"""``--processes N``: children are kept running, told once, and none outlives its supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jfast_sync.worker.supervisor import LIFELINE, Supervisor
from tests.waiting import eventually

#: Notes its pid and every SIGTERM in a folder; ends with exit status `sys.argv[2]` at the first one, or at once.
_CHILD = """
import os, signal, sys, time
from pathlib import Path
folder, code, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def told(*_):
    with (folder / f"{os.getpid()}.told").open("a") as note:
        note.write("x")
    if when == "told":
        os._exit(code)
signal.signal(signal.SIGTERM, told)
(folder / f"{os.getpid()}.runs").touch()
if when == "at once":
    sys.exit(code)
while True:
    time.sleep(60)
"""


class Watched:
    """A supervisor that runs in a thread of the test."""

    def __init__(
        self, folder: Path, processes: int = 2, *, code: int = 0, when: str = "told", grace: float = 5.0
    ) -> None:
        self.folder = folder
        command = [sys.executable, "-c", _CHILD, str(folder), str(code), when]
        self.supervisor = Supervisor(command, processes, grace=grace)
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def runs(self) -> set[int]:
        return {int(note.stem) for note in self.folder.glob("*.runs")}

    def told(self) -> dict[int, int]:
        return {int(note.stem): len(note.read_text()) for note in self.folder.glob("*.told")}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Watched]]:
    watched: list[Watched] = []
    yield watched
    for one in watched:
        for _ in range(2):
            one.supervisor.stop()
        one.thread.join(30)
        assert not one.thread.is_alive()


def test_a_stop_is_forwarded_once_to_every_child(tmp_path: Path, made: list[Watched]) -> None:
    watched = Watched(tmp_path, 3)
    made.append(watched)
    pids = eventually(watched.runs, until=lambda pids: len(pids) == 3)
    watched.supervisor.stop()
    watched.thread.join(20)
    assert watched.code == 0
    assert watched.told() == dict.fromkeys(pids, 1)


def test_a_dead_child_is_replaced(tmp_path: Path, made: list[Watched], caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tmp_path, 2)
    made.append(watched)
    first = eventually(watched.runs, until=lambda pids: len(pids) == 2)
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    assert len(eventually(watched.runs, until=lambda pids: len(pids) == 3)) == 3
    assert "ended: killed by SIGKILL; another starts in 0.5 s" in caplog.text
    watched.supervisor.stop()
    watched.thread.join(20)
    assert watched.code == 0


def test_children_that_have_nothing_left_to_do_are_not_replaced(tmp_path: Path, made: list[Watched]) -> None:
    watched = Watched(tmp_path, 2, when="at once")
    made.append(watched)
    watched.thread.join(20)
    assert watched.code == 0
    assert len(watched.runs()) == 2


def test_a_configuration_that_cannot_work_ends_all_with_its_code(tmp_path: Path, made: list[Watched]) -> None:
    watched = Watched(tmp_path, 2, code=2, when="at once")
    made.append(watched)
    watched.thread.join(20)
    assert watched.code == 2
    assert len(watched.runs()) == 2


def test_a_child_that_does_not_end_is_killed(tmp_path: Path, made: list[Watched]) -> None:
    watched = Watched(tmp_path, 1, when="never", grace=-5.0)  # one second after the stop
    made.append(watched)
    eventually(watched.runs, until=lambda pids: len(pids) == 1)
    watched.supervisor.stop()
    watched.thread.join(20)
    assert watched.code == 1


def test_children_have_a_session_of_their_own(tmp_path: Path, made: list[Watched]) -> None:
    """So a terminal's Ctrl-C does not reach them beside the supervisor's signal."""
    watched = Watched(tmp_path, 1)
    made.append(watched)
    (pid,) = eventually(watched.runs, until=lambda pids: len(pids) == 1)
    assert os.getsid(pid) == pid != os.getsid(0)


_FOLLOWER = """
import sys, threading
from pathlib import Path
from jfast_sync.worker.supervisor import follow_supervisor
gone = threading.Event()
follow_supervisor(gone.set)
Path(sys.argv[1]).touch()
gone.wait(60)
Path(sys.argv[1]).with_suffix(".drained").touch()
"""

_SUPERVISOR = """
import sys
from jfast_sync.worker.supervisor import Supervisor
Supervisor([sys.executable, *sys.argv[1:]], 1, grace=5).run()
"""


def test_children_drain_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "child.runs"
    with subprocess.Popen([sys.executable, "-c", _SUPERVISOR, "-c", _FOLLOWER, str(note)]) as supervisor:
        eventually(note.exists, timeout=30)
        supervisor.kill()
    eventually(note.with_suffix(".drained").exists, timeout=10)


def test_a_process_without_a_supervisor_follows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from jfast_sync.worker.supervisor import follow_supervisor

    monkeypatch.delenv(LIFELINE, raising=False)
    before = threading.active_count()
    follow_supervisor(lambda: None)
    assert threading.active_count() == before
