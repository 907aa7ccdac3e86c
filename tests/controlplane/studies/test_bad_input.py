"""What people may send that would harm: files of the server, numbers without end, YAML that grows
when it is read.
"""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.simulation.study.study import Study, StudyError
from controlplane.studies.models import Simulation
from controlplane.web.rest.errors import NoAnswerError
from policies.contract.snapshot_json import to_json
from tests.builders import a_cluster, a_node, a_user
from tests.builders_jobs import api
from tests.builders_policies import a_job, a_kind, a_snapshot
from tests.builders_studies import a_study

pytestmark = pytest.mark.django_db
ALL = "/api/v1/simulations/"
HUGE = 10**400
GAVEL = {"type": "gavel", "text": "x\n"}
LAUGHS = "\n".join(
    [
        "a0: &a0 [x, x, x, x]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)),
    ]
)
"""Less than 1 kB that means 170 million words."""


@pytest.fixture(name="ada")
def _ada() -> User:
    return a_user("ada")


def refusal(user: User, **fields: Any) -> str:
    """What the API says against a study with these fields; nothing may have been made of it."""
    answer = api(user).post(ALL, json.dumps(a_study(**fields)), content_type="application/json")
    assert answer.status_code == 400, answer.content
    assert not Simulation.objects.exists()
    return str(answer.json()["error"]["detail"])


@pytest.mark.parametrize(
    "workload", [{**GAVEL, "throughputs": "/etc/passwd"}, {"type": "gavel", "path": "/etc/passwd"}]
)
def test_no_option_of_a_trace_names_a_file_of_the_server(
    ada: User, workload: dict[str, Any]
) -> None:
    assert "files cannot be read" in refusal(ada, workload=workload)
    with pytest.raises(StudyError, match="files cannot be read"):
        Study.of(a_study(workload=workload))


def test_the_throughputs_of_a_kind_are_no_file(ada: User) -> None:
    form = to_json(a_snapshot(jobs=[a_job("a", kind="k")], kinds=[a_kind("k")]))
    study = a_study(workload={"type": "jobs", "jobs": form["jobs"], "kinds": form["kinds"]})
    answer = api(ada).post(ALL, json.dumps(study), content_type="application/json")
    assert answer.status_code == 201, answer.content


def test_a_word_that_happens_to_be_the_name_of_a_file_opens_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "words"
    pipe.write_text("secret")
    study = Study.of(a_study(workload={"type": "poisson", "jobs": 2, "name": str(pipe)}))
    before = study.runs()
    pipe.write_text("another")
    assert study.runs() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"workload": {"type": "poisson", "gap_s": HUGE}},
        {"workload": {"type": "poisson", "jobs": HUGE}},
        {"switches": {"launch_s": HUGE}},
        {"cluster": {**a_study()["cluster"], "round_s": HUGE}},
        {"policies": [{"name": "randomized_greedy", "parameters": {"rho": HUGE}}]},
        {"seeds": [HUGE]},
    ],
)
def test_numbers_without_end_are_refused(ada: User, fields: dict[str, Any]) -> None:
    assert "must be" in refusal(ada, **fields)


def test_a_long_study_is_read_by_a_process_that_can_be_ended(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def ask(question: Callable[..., object], *given: object) -> object:
        asked.append(question.__name__)
        try:
            return pickle.loads(pickle.dumps(question(*pickle.loads(pickle.dumps(given)))))
        except Exception as error:
            raise pickle.loads(pickle.dumps(error)) from None

    monkeypatch.setattr("controlplane.web.nice_process.ask", ask)
    teams = [{"name": f"team {number}"} for number in (*range(1000), 999)]
    said = refusal(ada, cluster={**a_study()["cluster"], "teams": teams})
    assert "teams[1000].name: 'team 999' is there twice" in said
    refusal(ada, seeds=[HUGE])
    assert "workload" in refusal(ada, workload={"type": "gavel", "text": "x\n" * 6000})
    long = json.dumps(a_study(cluster={**a_study()["cluster"], "teams": teams[:-1]}))
    assert api(ada).post(ALL, long, content_type="application/json").status_code == 201
    assert asked == ["_resolved"] * 3


def test_a_study_that_took_too_long_to_read_is_refused(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise NoAnswerError("ask for less")

    monkeypatch.setattr("controlplane.web.nice_process.ask", no_answer)
    assert "ask for less" in refusal(ada, name="x" * 20_000)


def test_what_if_refuses_numbers_without_end_too(ada: User) -> None:
    a_node(a_cluster(name="lab"))
    body = json.dumps({"policy": "randomized_greedy", "parameters": {"rho": HUGE}})
    answer = api(ada).post("/api/v1/clusters/lab/what-if/", body, content_type="application/json")
    assert answer.status_code == 400
    assert "rho: must be" in answer.json()["error"]["detail"]


@pytest.mark.parametrize("field", ["study", "cluster_yaml", "options", "parameters_fifo"])
def test_yaml_that_grows_when_it_is_read_is_refused(ada: User, client: Client, field: str) -> None:
    client.force_login(ada)
    typed = {
        "name": "by hand",
        "cluster": "written",
        "cluster_yaml": "nodes: []",
        "workload": "poisson",
        "seeds": "1",
    }
    text = f"{{{', '.join(LAUGHS.splitlines())}}}" if field.startswith("parameters") else LAUGHS
    answer = client.post("/simulations/new/", {**typed, "policy_fifo": "1", field: text})
    assert answer.status_code == 422
    assert "line 1: anchors and aliases are not taken here" in answer.content.decode()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [echo]", "!!python/name:os.system", "!mine {}"]
)
def test_yaml_tags_make_nothing(ada: User, client: Client, tag: str) -> None:
    client.force_login(ada)
    answer = client.post("/simulations/new/", {"study": f"name: {tag}"})
    assert answer.status_code == 422
    assert "could not determine a constructor" in answer.content.decode()


def test_a_name_of_an_uploaded_file_goes_nowhere(
    ada: User, client: Client, tmp_path: Path, settings: Any
) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    settings.SIMULATIONS_DIR = tmp_path
    trace = SimpleUploadedFile("../../../etc/cron.d/x.csv", b"arrival_s,run_s\n0,60\n")
    client.force_login(ada)
    typed = {
        "name": "n",
        "cluster": "written",
        "cluster_yaml": json.dumps(a_study()["cluster"]),
        "workload": "csv",
        "seeds": "1",
    }
    assert (
        client.post("/simulations/new/", {**typed, "policy_fifo": "1", "trace": trace}).status_code
        == 302
    )
    assert "cron" not in json.dumps(Simulation.objects.get().document)
    assert not list(tmp_path.iterdir())


def test_a_binary_file_as_a_trace_is_refused_by_its_run_and_not_by_the_server(
    ada: User, client: Client
) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    client.force_login(ada)
    typed = {
        "name": "n",
        "cluster": "written",
        "cluster_yaml": json.dumps(a_study()["cluster"]),
        "workload": "csv",
        "seeds": "1",
    }
    answer = client.post(
        "/simulations/new/",
        {
            **typed,
            "policy_fifo": "1",
            "trace": SimpleUploadedFile("x.csv.gz", b"\x1f\x8b\x08\x00\xff"),
        },
    )
    assert answer.status_code == 422
    assert "cannot be read:" in answer.content.decode()
