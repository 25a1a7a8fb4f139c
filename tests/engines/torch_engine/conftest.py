import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def fake(monkeypatch):
    """kvist.Client is a fake of this process, see fake_client.py."""
    from fake_client import FakeKvist

    fake = FakeKvist()
    monkeypatch.setattr("kvist.Client", fake.client)
    return fake
