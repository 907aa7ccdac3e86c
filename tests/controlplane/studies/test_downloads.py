"""Files of simulations: unpacked as they are sent, never whole."""

import json
import random
import tracemalloc
from typing import Any

import pytest
from django.test import Client

from controlplane.studies.models import SimulationFile
from controlplane.studies.running import folders
from controlplane.studies.running.folders import packed_files, read_file, stored_file
from tests.builders import a_user
from tests.builders_studies import a_done_simulation, a_simulation

pytestmark = pytest.mark.django_db


def a_large_file(tmp_path: Any, text: bytes) -> Any:
    """A simulation whose jobs.csv is this."""
    simulation = a_simulation(state="done")
    (tmp_path / "jobs.csv").write_bytes(text)
    SimulationFile.objects.bulk_create(packed_files(simulation, tmp_path))
    return simulation


def test_a_slow_download_holds_a_piece_and_not_the_file(tmp_path: Any) -> None:
    simulation = a_large_file(tmp_path, b"policy,seed\n" * 2_000_000)
    tracemalloc.start()
    size, pieces = stored_file(simulation, "jobs.csv") or (0, iter(()))
    assert size == 24_000_000
    assert next(pieces).startswith(b"policy,seed\npolicy")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000
    assert sum(map(len, pieces)) == size - folders.UNPACKED_AT_ONCE


@pytest.mark.parametrize("packed_at_once", [7, 1_000, 10**9])
def test_a_file_is_the_same_however_it_is_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, packed_at_once: int
) -> None:
    monkeypatch.setattr(folders, "PACKED_AT_ONCE", packed_at_once)
    monkeypatch.setattr(folders, "UNPACKED_AT_ONCE", 64)
    numbers = random.Random(1)
    text = b"".join(b"%d\n" % numbers.randrange(10**9) for _ in range(300)) + b"same " * 1_000
    assert read_file(a_large_file(tmp_path, text), "jobs.csv") == text


def test_a_file_that_is_deleted_meanwhile_does_not_end_as_if_it_were_whole(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PACKED_AT_ONCE", 8)
    simulation = a_large_file(tmp_path, b"policy,seed\n" * 1_000)
    _, pieces = stored_file(simulation, "jobs.csv") or (0, iter(()))
    next(pieces)
    simulation.delete()
    with pytest.raises(FileNotFoundError, match="was deleted"):
        list(pieces)


def test_a_download_says_how_long_it_is() -> None:
    ada = a_user()
    client, done = Client(), a_done_simulation(ada)
    client.force_login(ada)
    for path in (f"/api/v1/simulations/{done.pk}/", f"/simulations/{done.pk}/files/"):
        answer = client.get(f"{path}results.json")
        text = answer.getvalue()
        assert json.loads(text)["currency"] == "EUR"
        assert answer["Content-Length"] == str(len(text))
