"""PostgreSQL from programs on this machine: a private cluster in a temporary folder."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from pathlib import Path

import psutil

from tests.servers.accounts import Account, unprivileged
from tests.servers.clusters import end_abandoned, end_cluster
from tests.servers.errors import ServerUnavailable
from tests.servers.local import LocalServer
from tests.servers.network import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import ADVICE, Programs

# fsync and full_page_writes protect from a machine that loses power. The tests kill processes, and what a killed
# process has written is safe in the kernel, so both are off for speed. synchronous_commit must stay on: without it a
# commit is answered before it is written, and kill() would lose it - a fault no server of a user should show.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "timezone": "UTC",
}
# Nothing of a killed server may stay in /dev/shm or at a socket's path.
LOCAL_SETTINGS = {"listen_addresses": HOST, "unix_socket_directories": "", "dynamic_shared_memory_type": "mmap"}

_PREFIX = "jfast-postgres-"


class LocalPostgres(LocalServer, PostgresServer):
    """A cluster of our own, stopped fast. Root runs it as `postgres` or `nobody`: PostgreSQL refuses to run as root."""

    stop_signal = signal.SIGINT

    def __init__(self, programs: Programs, account: Account | None = None) -> None:
        self._account = account or unprivileged()
        self._move_into(self._account.private_folder(_PREFIX), _PREFIX, end_abandoned)
        self._programs = programs.within_reach_of(self._account, self._folder)
        self._secret = secrets.token_urlsafe(12)
        self._listen_on(free_port())

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _listen_on(self, port: int) -> None:
        super().__init__(f"postgresql://postgres:{self._secret}@{HOST}:{port}/postgres", secrets.token_urlsafe(12))

    def start(self) -> None:
        """Make the cluster the first time; after `stop` or `kill` start it again on its port."""
        if self.running:
            return
        if self._data.exists():
            self._run()
        else:
            self._initialise()
            self._run_on_some_port()
            self.prepare_role()

    def _initialise(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self._secret)
        self._account.own(password_file)
        command = [self._programs / "initdb", "--pgdata", self._data, "--username=postgres", "--auth=scram-sha-256"]
        options = [f"--pwfile={password_file}", "--no-locale", "--encoding=UTF8", "--no-sync"]
        done = subprocess.run(
            [*map(str, command), *options], capture_output=True, cwd=self._folder, env=self._environment(),
            check=False, **self._account.popen,
        )  # fmt: skip
        password_file.unlink()
        if done.returncode:
            raise ServerUnavailable(f"initdb failed: {done.stderr.decode(errors='replace')[-2000:]}\n{ADVICE}")

    def _run_on_some_port(self, attempts: int = 5) -> None:
        # Between looking at a port and listening on it, another program can take it.
        for left in reversed(range(attempts)):
            try:
                self._run()
                return
            except ServerUnavailable:
                if not left or "Address already in use" not in self.last_words():
                    raise
                self._listen_on(free_port())

    def _run(self) -> None:
        settings = {**SETTINGS, **LOCAL_SETTINGS, "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        self._spawn(command, self._environment(), **self._account.popen)

    def _end_all(self, first: psutil.Process) -> None:
        end_cluster(first, self._data)

    def _environment(self) -> dict[str, str]:
        # Not this process's environment: PG* variables would change what initdb and postgres do.
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(self._folder)}
