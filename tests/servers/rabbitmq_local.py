"""RabbitMQ from programs on this machine: a private broker in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

import psutil

from tests.servers.errors import ServerUnavailable
from tests.servers.local import LocalServer
from tests.servers.network import HOST, free_port
from tests.servers.processes import kill_tree
from tests.servers.rabbitmq import CONFIRM_TIMEOUT_MS, RabbitServer
from tests.waiting import eventually

_PREFIX = "jfast-rabbitmq-"
USER, PASSWORD = "jfast", "jfast-test"
_CONFIGURATION = f"""
listeners.tcp.local = {HOST}:{{port}}
loopback_users = none
default_user = {USER}
default_pass = {PASSWORD}
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 10MB
log.console = false
"""
_ADVANCED = f"[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {CONFIRM_TIMEOUT_MS}}}]}}].\n"


class LocalRabbit(LocalServer, RabbitServer):
    """A broker with its own node name, ports, data, epmd and cookie, and no plugin."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._move_into(Path(tempfile.mkdtemp(prefix=_PREFIX)), _PREFIX, _end_abandoned)
        self._port, self._distribution, self._epmd = free_port(), free_port(), free_port()
        self._node = f"jfast{os.getpid()}x{secrets.token_hex(3)}@localhost"
        super().__init__(f"amqp://{USER}:{PASSWORD}@{HOST}:{self._port}/%2F")
        (self._folder / "rabbitmq.conf").write_text(_CONFIGURATION.format(port=self._port))
        (self._folder / "advanced.config").write_text(_ADVANCED)
        (self._folder / "enabled_plugins").write_text("[].\n")
        (self._folder / "env.conf").write_text("")

    def start(self) -> None:
        if self.running:
            return
        self._spawn([str(self._programs / "rabbitmq-server")], self._environment())

    def stop(self) -> None:
        if self._process is not None:
            beam = self._beam()
            self.control("stop", str(self._folder / "mnesia" / f"{self._node}.pid"))
            self._process.wait(60)
            if beam is not None:
                eventually(lambda: not beam.is_running(), 30, what="the broker's end")
            self._ended()

    def close(self) -> None:
        """Kill it - nobody needs the data - with the name server it started, and remove its folder."""
        self.kill()
        subprocess.run(
            ["epmd", "-port", str(self._epmd), "-kill"],
            env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        super().close()

    def control(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._programs / "rabbitmqctl"), "-q", "-n", self._node, *arguments],
            capture_output=True, env=self._environment(), cwd=self._folder, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ServerUnavailable(f"rabbitmqctl {' '.join(arguments)}: {(done.stdout + done.stderr).decode()}")
        return done.stdout.decode()

    def last_words(self) -> str:
        logs = [self._log, *(self._folder / "logs").glob("*.log")]
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs if log.exists()).strip() or "no log"

    @property
    def log(self) -> str:
        """What the broker has logged so far."""
        return "".join(path.read_text(errors="replace") for path in sorted((self._folder / "logs").glob("*.log")))

    def _beam(self) -> psutil.Process | None:
        assert self._process is not None
        try:
            family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return None
        return next((process for process in family if process.name().startswith("beam")), None)

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_HOME": str(self._programs.parent),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            # Two schedulers without busy waiting: the tests share the machine with it.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _end_all(self, first: psutil.Process) -> None:
        if (beam := self._beam()) is not None:
            kill_tree(beam)
        kill_tree(first)


def _end_abandoned(folder: Path) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # Its name server is a daemon of another name, and knows the folder from its environment.
            if process.name().startswith(("beam", "epmd")) and process.environ().get("HOME") == str(folder):
                kill_tree(process)
