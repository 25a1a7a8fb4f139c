import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import kvist_daemon  # noqa: E402

kvist_daemon.use_checkout()

import pytest  # noqa: E402


@pytest.fixture
def daemon():
    with kvist_daemon.Daemon() as running:
        yield running
