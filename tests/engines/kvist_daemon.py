"""A kvistd of one test: its own runtime directory, killed with the test. And where this checkout's build is."""

import importlib.util
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
_BUILD = REPO / "build/release"


def use_checkout() -> None:
    """Makes the examples importable, and kvist: the installed one, else this checkout's with the library that its build has made."""
    sys.path.insert(0, str(REPO / "examples"))
    if importlib.util.find_spec("kvist") is None:
        sys.path.insert(0, str(REPO / "connector/python"))
        os.environ.setdefault("KVIST_LIBRARY", str(_BUILD / "lib/libkvist.so.1"))


def binary(name: str) -> str:
    """In $KVIST_BIN, else in this checkout's release build."""
    return str(pathlib.Path(os.environ.get("KVIST_BIN", _BUILD / "bin")) / name)


class Daemon:
    """Started by the constructor; `start` again after `kill` finds the same socket. A context manager."""

    def __init__(self, *, started: bool = True, command: tuple[str, ...] = ("kvistd",), **settings: str) -> None:
        """command: a daemon of the build's, and its arguments."""
        self._command = command
        self._dir = tempfile.TemporaryDirectory(prefix="kvist")
        self.dir = self._dir.name
        self.socket = f"{self.dir}/engine.sock"
        self.admin = f"{self.dir}/admin.sock"
        self.settings = {
            "daemon.state_dir": f"{self.dir}/state",
            "session.socket": self.socket,
            "admin.socket": self.admin,
            "metrics.listen": "",
            "log.level": "warn",
            "ssd.enabled": "false",
            "pool.bytes": "64MiB",
            "pool.touch_threads": "0",
            "lease.half_store": "2s",  # of a rank that never comes
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self._process: subprocess.Popen | None = None
        if started:
            self.start()

    def start(self) -> None:
        """Returns when kvistd says READY; raises after 20 s."""
        command = [binary(self._command[0]), *self._command[1:]]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=self.dir)
        ready, _, _ = select.select([self._process.stdout], [], [], 20)
        if not ready or b"READY" not in self._process.stdout.readline():
            self.kill()
            raise RuntimeError("kvistd didn't get ready")

    def kill(self) -> None:
        """SIGKILL, also when it is paused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def stop(self) -> None:
        """SIGTERM: what a kvistd has is on its disk then, if it has one."""
        self._process.terminate()
        if (status := self._process.wait(60)) != 0:
            raise AssertionError(f"kvistd ended as {status}")
        self._process.stdout.close()
        self._process = None

    def pause(self) -> None:
        """SIGSTOP; returns when it stands."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def ctl(self, *arguments: str) -> dict:
        """What `kvistctl -o json` answers."""
        command = [binary("kvistctl"), "--socket", self.admin, "-o", "json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def status(self) -> dict:
        return self.ctl("status")

    def clear(self) -> None:
        self.ctl("clear", "--yes")

    def wait_status(self, wanted, limit_s: float = 20.0) -> dict:
        """kvistctl's status once `wanted(status)` holds; raises with the last one after `limit_s`."""
        end = time.monotonic() + limit_s
        while not wanted(status := self.status()):
            if time.monotonic() > end:
                raise AssertionError(f"kvistd's status stays {status}")
            time.sleep(0.02)
        return status

    def wait_idle(self, *, sessions: int | None = None) -> dict:
        """Nothing leased, nothing under way; so many sessions."""
        return self.wait_status(
            lambda s: (
                s["leases"] == 0 and s["ops"] == 0 and s["filling"] == 0 and (sessions is None or s["sessions"] == sessions)
            )
        )

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_) -> None:
        self.kill()
        self._dir.cleanup()
