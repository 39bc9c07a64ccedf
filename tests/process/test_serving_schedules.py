"""The processes of a server schedule while they serve: each tick once in all of them, whichever server it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.process.fleet import SECOND, Fleet, assert_each_tick_once, between_ticks, fleet
from tests.servers.network import HOST, free_port
from tests.waiting import eventually

__all__ = ["fleet"]

GUNICORN = """
bind = "{bind}"
workers = 4
preload_app = {preload}
control_socket_disable = True
"""


@pytest.mark.parametrize("fleet", ["postgresql"], indirect=True)
@pytest.mark.parametrize("preload", [True, False], ids=["preloaded", "not preloaded"])
def test_gunicorn_goes_on_when_a_worker_is_killed(fleet: Fleet, preload: bool) -> None:
    (fleet.folder / "gunicorn.conf.py").write_text(GUNICORN.format(bind=f"{HOST}:{free_port()}", preload=preload))
    # Exported by whoever develops, and no sign of a reloader here.
    master = fleet.serve("gunicorn", "main:app", FLASK_DEBUG="1")
    children = eventually(master.children, 30, until=lambda found: len(found) == 4)
    fleet.wait_for_ticks(3)
    between_ticks()
    children[0].kill()
    ticks = fleet.wait_for_ticks(4)
    assert_each_tick_once(ticks, longest_gap=4 * SECOND)
    assert "Traceback" not in master.log
    master.terminate()
    assert master.wait(15) == 0


@pytest.mark.long
@pytest.mark.parametrize("fleet", ["sqlite", "postgresql"], indirect=True)
def test_gunicorn_preloaded_ticks_ten_times_in_ten_seconds(fleet: Fleet) -> None:
    (fleet.folder / "gunicorn.conf.py").write_text(GUNICORN.format(bind=f"{HOST}:{free_port()}", preload=True))
    master = fleet.serve("gunicorn", "main:app")
    children = eventually(master.children, 30, until=lambda found: len(found) == 4)
    begun = fleet.wait_for_ticks(2)[-1]
    eventually(lambda: datetime.now(UTC) > begun + 10.5 * SECOND, 30, what="ten seconds")
    in_ten_seconds = [tick for tick in fleet.ticks() if begun < tick <= begun + 10 * SECOND]
    print(f"{len(in_ten_seconds)} ticks in ten seconds")
    assert 9 <= len(in_ten_seconds) <= 11
    children[0].kill()
    assert_each_tick_once(fleet.wait_for_ticks(5), longest_gap=2 * SECOND)
    assert "Traceback" not in master.log


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_flask_run_with_its_reloader_goes_on_after_a_reload(fleet: Fleet) -> None:
    parent = fleet.serve("flask", "--app", "main", "run", "--debug", "--port", str(free_port()))
    fleet.wait_for_ticks(2)
    (child,) = parent.children()
    assert parent.process.num_threads() == 1

    with (fleet.folder / "main.py").open("a") as source:
        source.write("# changed\n")
    eventually(lambda: not child.is_running(), 15, what="the end of the process from before the change")
    ticks = fleet.wait_for_ticks(2)

    assert_each_tick_once(ticks, longest_gap=5 * SECOND)
    assert parent.process.num_threads() == 1
    assert "Traceback" not in parent.log
    parent.press_ctrl_c()
    parent.wait(5)
    eventually(lambda: not parent.children(), 5, what="the end of both processes")
