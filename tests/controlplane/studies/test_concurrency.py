"""One person asks in two processes at once: no more simulations wait than one person may have."""

from pathlib import Path

import pytest

from controlplane.studies.models import Simulation
from controlplane.studies.services import MOST_ACTIVE
from tests.builders import a_user
from tests.builders_processes import at_once
from tests.builders_studies import a_simulation

pytestmark = pytest.mark.django_db(transaction=True)

# Each process keeps its transaction open for a moment, so that the two overlap whoever comes first.
ASKING = """
import time
from django.contrib.auth.models import User
from controlplane.studies import services
from tests.builders_studies import a_study
record = services.record
def record_slowly(*told, **values):
    record(*told, **values)
    time.sleep(0.5)
services.record = record_slowly
user = User.objects.get(pk=sys.argv[2])
ready()
try:
    services.simulation_create(user, a_study())
    print("taken")
except services.SimulationConflictError:
    print("refused")
"""


def test_the_last_place_is_given_once_to_two_requests_at_once(tmp_path: Path) -> None:
    user = a_user()
    for _ in range(MOST_ACTIVE - 1):
        a_simulation(user)
    answers = at_once(tmp_path, ASKING, (user.pk,), (user.pk,))
    assert sorted(answers) == [(0, "refused\n"), (0, "taken\n")]
    assert Simulation.objects.count() == MOST_ACTIVE
