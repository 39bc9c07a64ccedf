"""What a thread knows about where its work comes from, and that it forgets it again."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from jfast_sync import context
from jfast_sync.context import Origin, bind, bind_app, bind_job, current_app, current_job, origin
from jfast_sync.errors import ConfigError, NotInJobError
from jfast_sync.job import Job, RunningJob


def test_nothing_is_set_outside() -> None:
    assert origin() == Origin(None, None, None)
    assert context.current_tenant_id() is None
    assert context.current_request_id() is None
    with pytest.raises(NotInJobError, match="inside a task's handler only"):
        current_job()


def test_bound_inside_the_block_and_gone_afterwards() -> None:
    with bind(Origin(tenant_id="a", request_id="r1")):
        with bind(Origin(tenant_id="b")):
            assert (context.current_tenant_id(), context.current_request_id()) == ("b", None)
        assert (context.current_tenant_id(), context.current_request_id()) == ("a", "r1")
    assert origin() == Origin()


def test_gone_after_an_exception_too() -> None:
    job = RunningJob(Job(task="x"))
    with pytest.raises(ZeroDivisionError), bind(Origin(tenant_id="a")), bind_job(job), bind_app(an_app()):
        assert current_job() is job
        1 / 0  # noqa: B018 - it raises
    assert origin() == Origin()
    with pytest.raises(NotInJobError):
        current_job()


def test_each_thread_has_its_own() -> None:
    seen: list[Origin] = []
    with bind(Origin(tenant_id="a")):
        thread = threading.Thread(target=lambda: seen.append(origin()))
        thread.start()
        thread.join()
    assert seen == [Origin()]


def an_app() -> Any:
    return cast("Any", object())


def test_the_app_bound_here_wins_over_the_one_installed() -> None:
    installed, bound = an_app(), an_app()
    context.install_app(installed)
    try:
        assert current_app() is installed
        with bind_app(bound):
            assert current_app() is context.get_context() is bound
        assert current_app() is installed
        context.uninstall_app(bound)
        assert current_app() is installed
    finally:
        context.uninstall_app(installed)
    with pytest.raises(ConfigError, match=r"connect\(\)"):
        current_app()


@pytest.mark.parametrize("text", ["a", "acme-1", "r.1_2:3@x/y+z=", "0" * 128])
def test_names_from_outside_that_are_kept(text: str) -> None:
    assert context.valid_name(text)


@pytest.mark.parametrize(
    "text", ["", " a", "a b", "a\n", "a\nINFO forged", "-a", "ü", "a\x00", "\u202ea", "0" * 129, "a\x1b[31m"]
)
def test_names_from_outside_that_are_not(text: str) -> None:
    assert not context.valid_name(text)
