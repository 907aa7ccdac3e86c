"""A server in a process of its own, and visitors who keep what their browser complains of."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, StorageState

ROOT = Path(__file__).resolve().parents[1]
SCREENSHOTS = ROOT / "screenshots"
PASSWORD = "a long password"


def chromium() -> str:
    """The browser's path. Without one the tests fail: pages that nobody has looked at are not
    done.
    """
    wanted = os.environ.get("LOADMASTER_CHROMIUM") or "/usr/bin/chromium"
    found = shutil.which(wanted)
    if found is None:
        pytest.fail(f"no browser at {wanted}: install Debian's chromium or set LOADMASTER_CHROMIUM")
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `ids` names what the seed has made."""

    url: str
    home: Path
    environment: dict[str, str]
    ids: dict[str, str]

    def do(self, script: str) -> str:
        """Run some lines of Python in the server's database, with `d` the seed's names; what they
        print.
        """
        argv = [sys.executable, "-m", "tests.builders_browser_seed", "--do", script]
        return subprocess.run(
            argv,
            cwd=ROOT,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout


@dataclass(slots=True)
class Visitor:
    """A page of a logged-in person that keeps everything the console complained of."""

    page: Page
    server: Server
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str, heading: str) -> Page:
        """Go there and wait for the heading."""
        self.page.goto(self.server.url + path)
        self.page.get_by_role("heading", name=heading, exact=True).first.wait_for()
        return self.page

    def picture(self, name: str) -> None:
        """A screenshot of the whole page, after which nothing may have been complained of."""
        SCREENSHOTS.mkdir(exist_ok=True)
        # To hide the caret Playwright gives fields a `style`, which a refresh at that moment copies
        # to the new fields, and our pages allow none.
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True, caret="initial")
        assert self.complaints == [], "\n".join(self.complaints)

    def overflow_px(self) -> int:
        """By how many pixels the page is wider than the window."""
        width = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(width)


@contextmanager
def serving(home: Path, database: str = "") -> Iterator[Server]:
    """The web server on a free port over a seeded SQLite file in `home`, or over the empty database
    of that address.
    """
    environment = {**_environment(home), **({"DATABASE_URL": database} if database else {})}
    seeding = [sys.executable, "-m", "tests.builders_browser_seed"]
    seeded = subprocess.run(
        seeding, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert seeded.returncode == 0, seeded.stderr
    ids = dict(line.split("=", 1) for line in seeded.stdout.splitlines() if "=" in line)
    port = _free_port()
    argv = [sys.executable, "-m", "controlplane.serve", "--port", str(port), "--grace", "1"]
    with (home / "web.log").open("w") as log:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process, home / "web.log")
            yield Server(url, home, environment, ids)
        finally:
            process.terminate()
            process.wait(20)


def visit(
    browser: Browser, server: Server, state: StorageState | None, **options: object
) -> Iterator[Visitor]:
    """A page of somebody, logged in or not; `options` are those of a browser context."""
    chosen = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
    context: BrowserContext = browser.new_context(storage_state=state, **chosen)  # type: ignore[arg-type]  # options by name
    context.set_default_timeout(15_000)
    page = context.new_page()
    visitor = Visitor(page, server)
    page.on(
        "console",
        lambda m: (
            visitor.complaints.append(f"{m.type}: {m.text}")
            if m.type in ("error", "warning")
            else None
        ),
    )
    page.on("pageerror", lambda error: visitor.complaints.append(f"exception: {error}"))
    page.on(
        "requestfailed",
        # Going to another page aborts what the page before still asked for: that is no fault.
        lambda r: (
            visitor.complaints.append(f"failed: {r.url}: {r.failure}")
            if r.failure != "net::ERR_ABORTED"
            else None
        ),
    )
    page.on(
        "request",
        lambda r: (
            visitor.complaints.append(f"fetched from elsewhere: {r.url}")
            if not _ours(r.url, server)
            else None
        ),
    )
    yield visitor
    context.close()


def _ours(url: str, server: Server) -> bool:
    return url.startswith((server.url, "data:", "blob:"))


def log_in(browser: Browser, server: Server, name: str) -> StorageState:
    """Log in by the form; what the browser keeps of it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url + "/login/")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Queue").wait_for()
    state = context.storage_state()
    context.close()
    return state


def _environment(home: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if n not in ("DATABASE_URL", "REDIS_URL")}
    ours = {
        "LOADMASTER_HOME": str(home),
        "DJANGO_SETTINGS_MODULE": "tests.browser_settings",
        "PYTHONPATH": str(ROOT),
    }
    return {**kept, **ours}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-3000:]}")
        try:
            httpx.get(f"{url}/login/", timeout=5)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the server does not answer: {log.read_text()[-3000:]}")
