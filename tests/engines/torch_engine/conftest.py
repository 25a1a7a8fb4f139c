import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import kvist_daemon  # noqa: E402

kvist_daemon.use_checkout()

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def daemon():
    with kvist_daemon.Daemon() as running:
        yield running


@pytest.fixture
def fake(monkeypatch):
    """kvist.Client is a fake of this process, see fake_client.py."""
    from fake_client import FakeKvist

    fake = FakeKvist()
    monkeypatch.setattr("kvist.Client", fake.client)
    return fake
