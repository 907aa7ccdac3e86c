"""Screenshots for the README, made from the running demo: `python -m experiments.screenshots`.

Starts `manage.py demo` in a temporary folder, waits until jobs run side by side, and takes three
pages with Chromium (`LOADMASTER_CHROMIUM`, `/usr/bin/chromium`) into `docs/images/`.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("LOADMASTER_CHROMIUM") or "/usr/bin/chromium"
WINDOW: ViewportSize = {"width": 1200, "height": 760}
STARTS_WITHIN_S = 180.0
_ADDRESS = re.compile(r"The pages are up: (\S+)")
_LOGIN = re.compile(r"Log in as (\w+) with the one-time password (\S+)")


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo and how to log in there."""

    url: str
    user: str
    password: str


@contextmanager
def running_demo(folder: Path, port: int) -> Iterator[Demo]:
    """Start the demo; stop it with everything it started."""
    output = folder / "demo.log"
    command = [sys.executable, "-u", "manage.py", "demo", "--port", str(port)]
    environment = {**os.environ, "LOADMASTER_HOME": str(folder / "home")}
    with output.open("w") as log:
        demo = subprocess.Popen(
            [*command, "--report", str(folder / "report.json")],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield _address(demo, output)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(timeout=120)


def _address(demo: subprocess.Popen[bytes], output: Path) -> Demo:
    """Wait for the demo's address and password; RuntimeError with its output if it ends before."""
    until = time.monotonic() + STARTS_WITHIN_S
    while demo.poll() is None and time.monotonic() < until:
        text = output.read_text()
        if (address := _ADDRESS.search(text)) and (login := _LOGIN.search(text)):
            return Demo(address[1], login[1], login[2])
        time.sleep(0.5)
    raise RuntimeError(f"the demo did not start:\n{output.read_text()}")


def take(demo: Demo, wait_s: float, folder: Path) -> None:
    """Take the queue, the timeline and the page of a running job."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        page.goto(f"{demo.url}/login/")
        page.get_by_label("Name").fill(demo.user)
        page.get_by_label("Password").fill(demo.password)
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Old password").fill(demo.password)
        for label in ("New password", "New password confirmation"):
            page.get_by_label(label, exact=True).fill("a password for screenshots")
        page.get_by_role("button", name="Change it").click()
        page.get_by_role("heading", name="Queue").wait_for()
        page.wait_for_timeout(wait_s * 1000)
        _picture(page, f"{demo.url}/", folder / "queue.png")
        job = page.locator("a[href^='/jobs/']").first.get_attribute("href")
        _picture(page, f"{demo.url}/timeline/", folder / "timeline.png")
        _picture(page, f"{demo.url}{job}", folder / "job.png")
        browser.close()


def _picture(page: Page, url: str, file: Path) -> None:
    page.goto(url)
    page.wait_for_timeout(3000)  # charts draw themselves
    page.screenshot(path=file)


def main() -> None:
    """Run the demo and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--wait-s", type=float, default=130.0, help="seconds after the first page")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, running_demo(Path(folder), options.port) as demo:
        take(demo, options.wait_s, options.folder)


if __name__ == "__main__":
    main()
