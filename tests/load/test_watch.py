"""What a run says of the programs it ran."""

import subprocess
import sys
import time

from experiments.load.watch import Watch

BUSY = """
import time
end = time.process_time() + {seconds}
while time.process_time() < end:
    pass
print("done", flush=True)
time.sleep(60)
"""


def _busy(seconds: float) -> subprocess.Popen[str]:
    """A program that passes for the beat: it works for so long, says so, and waits."""
    command = [sys.executable, "-c", BUSY.format(seconds=seconds), "celery -A controlplane beat"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _wait(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def test_what_began_while_it_was_open_counts_whole_and_what_was_there_from_then_on() -> None:
    before = _busy(0.5)
    _wait(before)
    began_s = time.monotonic()
    with Watch() as watch:
        after = _busy(0.3)
        _wait(after)
    took_s = time.monotonic() - began_s
    for process in (before, after):
        process.kill()
        process.communicate()
    used_s = watch.figures["beat"]["cpu"] * took_s
    assert 0.25 <= used_s <= 0.6, watch.figures
    assert watch.figures["generator"]["rss_mb"] > 0
