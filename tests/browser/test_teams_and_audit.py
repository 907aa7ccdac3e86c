"""The pages of teams and of the audit in a real browser."""

import pytest

from tests.builders_browser import Server, Visitor

pytestmark = pytest.mark.browser

SEED = """
from django.contrib.auth.models import User
from jobs.models import Job, Team, TeamRole
from jobs.people import set_role, save_team
from jobs.services import job_hold, job_submit
from controlplane.audit.record import record
team = Team.objects.get(name='vision')
ada, grace = User.objects.get(username='ada'), User.objects.get(username='grace')
set_role(team, ada, TeamRole.MAINTAINER)
set_role(team, grace)
record('cluster.change', 'local', old={'period_s': 300.0}, new={'period_s': 60.0}, by=grace)
record('secret.change', 'vision/wandb', team=team, by=ada)
data = {'name': 'resnet-50-' + 'x' * 80, 'team': 'vision', 'command': 'true'}
from clusters.models import Cluster
data['cluster'] = Cluster.objects.first().name
job = job_submit(ada, data).job
job_hold(job, ada)
"""


def test_operators_change_roles_and_the_audit_tells_of_it(server: Server, grace: Visitor) -> None:
    server.do(SEED)
    page = grace.open("/teams/", "Teams")
    page.get_by_label("Role of ada in vision").select_option("viewer")
    page.get_by_role("button", name="Set role of ada").click()
    assert page.get_by_text("ada is viewer of vision.").is_visible()
    grace.picture("teams")
    page = grace.open("/audit/?action=member", "Audit")
    assert page.get_by_text("maintainer → viewer").is_visible()
    grace.open("/audit/", "Audit")
    grace.picture("audit")
    assert grace.overflow_px() <= 0
    server.do(SEED)


def test_pages_fit_a_phone(server: Server, ada_on_a_phone: Visitor) -> None:
    server.do(SEED)
    for path, heading in (("/teams/", "Teams"), ("/audit/", "Audit")):
        ada_on_a_phone.open(path, heading)
        ada_on_a_phone.picture(f"phone{path.strip('/')}")
        assert ada_on_a_phone.overflow_px() <= 0


def test_pages_are_dark_at_night(server: Server, ada_at_night: Visitor) -> None:
    server.do(SEED)
    for path, heading in (("/teams/", "Teams"), ("/audit/", "Audit")):
        ada_at_night.open(path, heading)
        ada_at_night.picture(f"dark{path.strip('/')}")
