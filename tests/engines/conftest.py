"""For all folders: kvist, the examples and kvist_daemon can be imported, and a test gets a kvistd of its own."""

import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kvist_daemon  # noqa: E402

kvist_daemon.use_checkout()

import pytest  # noqa: E402


@pytest.fixture
def daemon():
    with kvist_daemon.Daemon() as running:
        yield running


@pytest.fixture
def endpoint():
    """Where an engine may publish its KV events."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"
