"""Sites of the cases, as this user can have them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders_isolation import IS_ROOT, Site, a_site, an_isolation


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder that other users can get to, as /var/lib/loadmaster-agent is."""
    folder = Path(tempfile.mkdtemp(prefix="lm-isolation-", dir="/tmp"))
    folder.chmod(0o755)
    private = folder / "state"
    private.mkdir(0o700)
    yield private
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def site(state: Path) -> Iterator[Site]:
    yield from a_site(an_isolation(state))


@pytest.fixture(params=["sandbox", "user"] if IS_ROOT else ["sandbox"])
def any_site(request: pytest.FixtureRequest, state: Path) -> Iterator[Site]:
    """A site with bubblewrap, and as root one with users of teams alone."""
    changes = {} if request.param == "sandbox" else {"program": ""}
    yield from a_site(an_isolation(state, **changes))
