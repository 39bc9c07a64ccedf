"""A worker inside another program: signals are left alone, nothing is lost at its end, nothing lives after a fork."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

_TASKS = """
import time
from pathlib import Path
from jfast_sync.tasks import task

@task("m.sleep")
def sleep(payload: dict) -> None:
    Path("started").touch()
    time.sleep(600)
"""

_PROGRAM = """
import json, os, signal, sys, time
from jfast_sync import Job, connect

before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
jf = connect()
jf.setup()
worker = jf.start_worker(threads=2, grace=0.2)
jf.queue.enqueue(Job(task="m.sleep"))
while not os.path.exists("started"):
    time.sleep(0.01)
after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
pid = os.fork()
if pid == 0:
    with open("child", "w") as note:
        json.dump({"health": worker.health().detail, "ended": worker.join(1)}, note)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print(json.dumps({"handlers": before == after, "child": status, "running": jf.queue.stats().running}))
"""


def test_a_program_that_ends_releases_what_its_worker_runs(tmp_path: Path) -> None:
    module = tmp_path / "modules" / "m"
    module.mkdir(parents=True)
    (module / "tasks.py").write_text(_TASKS)
    (tmp_path / "jfast.toml").write_text('[plugin.database]\ndsn = "sqlite:///jfast.db"\n')
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(ran.stdout) == {"handlers": True, "child": 0, "running": 1}
    assert json.loads((tmp_path / "child").read_text()) == {
        "health": "the worker was started before a fork and does not run here",
        "ended": True,
    }
    with sqlite3.connect(tmp_path / "jfast.db") as database:
        rows = database.execute("SELECT status, attempts FROM jfast_jobs").fetchall()
    database.close()
    assert rows == [("pending", 0)]
