"""Files of counters, which processes map into memory."""

from pathlib import Path

from controlplane.web.http.request_metrics import FIRST_BYTES, ReservedFile


def has_holes(path: Path) -> bool:
    status = path.stat()
    return status.st_blocks * 512 < status.st_size


def test_a_file_of_counters_has_no_hole_whose_first_use_may_find_the_disk_full(
    tmp_path: Path,
) -> None:
    path = tmp_path / "counter_1.db"
    counters = ReservedFile(str(path))
    assert not has_holes(path)
    for number in range(2000):
        key = f"{number}:" + "x" * 100
        counters.write_value(key, 1.0, 0.0)  # type: ignore[no-untyped-call]  # of the library
    assert path.stat().st_size > FIRST_BYTES
    assert not has_holes(path)
    counters.close()  # type: ignore[no-untyped-call]  # of the library
