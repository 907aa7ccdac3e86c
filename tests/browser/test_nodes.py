"""The page of nodes in a browser: unhealthy GPUs, and a token that replaces a lost machine."""

import pytest
from playwright.sync_api import Browser, StorageState

from tests.builders_browser import Server, Visitor, visit

pytestmark = pytest.mark.browser

BREAK = """
from clusters.models import Device, Node
node = Node.objects.order_by("name").first()
first, second = node.devices.order_by("uuid")[:2]
Device.objects.filter(pk=first.pk).update(healthy=False, trouble="GPU is lost")
Device.objects.filter(pk=second.pk).update(trouble="slowed down, as it is too hot")
Node.objects.filter(pk=node.pk).update(
    gpu_trouble="GPU 3: MIG is on, and has no instances", session_expires_at=None
)
print(node.name)
"""
WORDS = (
    "unhealthy: GPU is lost",
    "slowed down, as it is too hot",
    "GPUs may be missing: GPU 3: MIG is on, and has no instances",
)


def test_the_card_tells_why_a_gpu_is_unhealthy(
    grace: Visitor, browser: Browser, server: Server, cookies: dict[str, StorageState]
) -> None:
    server.do(BREAK)
    page = grace.open("/nodes/", "Nodes")
    for words in WORDS:
        assert page.get_by_text(words, exact=True).first.is_visible()
    grace.picture("nodes-broken-gpus")
    for name, options in (
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": {"width": 390, "height": 844}, "has_touch": True}),
    ):
        for visitor in visit(browser, server, cookies["ada"], **options):
            visitor.open("/nodes/", "Nodes")
            assert visitor.overflow_px() <= 0, "it scrolls sideways"
            visitor.picture(f"nodes-broken-gpus-{name}")


def test_an_operator_gets_a_token_for_a_machine_that_is_gone(
    grace: Visitor, server: Server
) -> None:
    name = server.do(BREAK).strip()
    page = grace.open("/nodes/", "Nodes")
    page.get_by_role("button", name=f"Replace machine of {name}").click()
    page.get_by_role("button", name="Make a token").click()
    told = page.get_by_text(f"Enrolment token for the machine that replaces {name}")
    told.wait_for()
    assert len((told.inner_text()).rpartition(": ")[2]) > 40
    grace.picture("nodes-replace-machine")
