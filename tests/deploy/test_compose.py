"""docker-compose.yml, really: up with TLS, an agent enrolled, jobs run, parts scaled and restarted,
down again.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import pytest
import yaml

import loadmaster
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
PROJECT = f"loadmaster-test-{os.getpid()}"
FILES = (
    "docker-compose.yml",
    "deploy/nginx.conf",
    "deploy/make-env",
    "deploy/make-certificate",
    "deploy/env.example",
)
IMAGES = {
    "LOADMASTER_IMAGE": "loadmaster-test",
    **{
        f"LOADMASTER_{name}_IMAGE": "loadmaster-stand-in" for name in ("POSTGRES", "REDIS", "NGINX")
    },
}


@dataclass
class Site:
    """A folder with the compose file, and what talks to it from outside."""

    folder: Path
    https: int
    http: int
    agent: subprocess.Popen[bytes] | None = None
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    client: loadmaster.Client | None = None

    @property
    def url(self) -> str:
        """Where people and agents find the server."""
        return f"https://localhost:{self.https}"

    def compose(self, *words: str, check: bool = True) -> str:
        """Run docker-compose in the folder; what it printed."""
        done = subprocess.run(
            ["docker-compose", "--project-name", PROJECT, *words],
            cwd=self.folder, env={**os.environ, **IMAGES}, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout + done.stderr

    def manage(self, *words: str) -> str:
        """Run a command of the server's in a web container."""
        return self.compose("exec", "-T", "web", "/app/deploy/entrypoint", "manage", *words)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """An answer by TLS, checked with the first try's authority."""
        with httpx.Client(verify=self.tls, timeout=30) as client:
            return client.get(self.url + path, headers=headers)

    def healthy(self, **counts: int) -> bool:
        """Whether so many containers of each service are healthy."""
        listed = subprocess.check_output(
            [
                "docker",
                "ps",
                "--filter",
                f"label=com.docker.compose.project={PROJECT}",
                "--format",
                "{{json .}}",
            ],
            text=True,
        )
        rows = [json.loads(line) for line in listed.splitlines()]
        seen = {
            name: sum(
                f"service={name}," in row["Labels"] + "," and "(healthy)" in row["Status"]
                for row in rows
            )
            for name in counts
        }
        return seen == counts


def until(what: str, seen: Callable[[], bool], site: Site) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not seen():
        if time.monotonic() > ends:
            pytest.fail(
                f"no {what}:\n{site.compose('ps', check=False)}\n"
                f"{site.compose('logs', '--tail=25', check=False)}"
            )
        time.sleep(0.5)


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])


def answers(site: Site) -> bool:
    try:
        return site.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The folder as an operator has it after the two commands of the guide; everything is taken
    down and removed at the end.
    """
    subprocess.run([ROOT / "tests" / "deploy" / "images", sys.executable], check=True, timeout=1400)
    folder = tmp_path_factory.mktemp("site")
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(["deploy/make-env", "localhost"], cwd=folder, check=True)
    subprocess.run(["deploy/make-certificate", "localhost", "127.0.0.1"], cwd=folder, check=True)
    https, http = free_ports()
    with (folder / ".env").open("a") as env:
        env.write(
            f"LOADMASTER_HTTPS_PORT={https}\nLOADMASTER_HTTP_PORT={http}\nWEB_CONCURRENCY=1\nLOADMASTER_WORKER_CONCURRENCY=1\n"
        )
    site = Site(
        folder,
        https,
        http,
        tls=ssl.create_default_context(cafile=folder / "deploy" / "certificates" / "ca.crt"),
    )
    try:
        site.compose("up", "--detach", "--no-build")
        until("answer by TLS", lambda: answers(site), site)
        yield site
    finally:
        if site.client is not None:
            site.client.close()
        if site.agent is not None and site.agent.poll() is None:
            site.agent.send_signal(signal.SIGTERM)
            site.agent.wait(60)
        site.compose("down", "--volumes", "--timeout", "20", check=False)


def begin(site: Site) -> loadmaster.Client:
    """Make the operator, log in, enrol an agent that checks the certificate; the operator's
    client.
    """
    said = site.manage("bootstrap")
    password = re.search(r"admin / (\S+)", said)
    assert password is not None, said
    site.client = loadmaster.Client(site.url, transport=httpx.HTTPTransport(verify=site.tls))
    site.client.login("admin", password[1], new_password="a password of one's own")
    token = site.client.enrolment_token("local")
    (site.folder / "gpus.yaml").write_text(
        yaml.safe_dump(
            {"gpu_type": "V100", "count": 2, "memory_gb": 16.0, "step_s": {"default": {1: 0.1}}}
        )
    )
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "LOADMASTER_SERVER": site.url,
        "LOADMASTER_TOKEN": token,
        "LOADMASTER_CA": str(site.folder / "deploy" / "certificates" / "ca.crt"),
        "LOADMASTER_NODE_NAME": "first",
        "LOADMASTER_STATE_DIR": str(site.folder / "agent"),
        "LOADMASTER_EMULATE": str(site.folder / "gpus.yaml"),
    }  # fmt: skip
    with (site.folder / "agent.log").open("wb") as log:
        command = [sys.executable, "-m", "loadmaster.agent", "--stop-jobs-on-exit"]
        site.agent = subprocess.Popen(
            command, env=environment, cwd=site.folder, stdout=log, stderr=log
        )
    client = site.client
    until("node", lambda: [node.state for node in client.nodes()] == ["ready"], site)
    return client


def runs_a_job(site: Site, client: loadmaster.Client, steps: int = 10) -> None:
    """Submit a job and see it through; the house may be shaken meanwhile, so that single questions
    may fail.
    """
    code = (
        "import loadmaster.training as t\nfor _ in t.steps(range(10**6), save=lambda p: p.touch(),"
        " load=lambda p: None): pass"
    )
    submitted = client.submit(
        name="small",
        kind="small",
        command=[sys.executable, "-c", code],
        steps=steps,
        walltime=600,
        cores=0.1,
        memory_gb=0.1,
    )

    def over() -> bool:
        try:
            return client.job(submitted.id).state in ("completed", "failed", "cancelled")
        except (loadmaster.LoadmasterError, httpx.HTTPError):
            return False

    until(f"end of the job (agent: {(site.folder / 'agent.log').read_text()[-1500:]})", over, site)
    until("answer", lambda: answers(site), site)
    assert client.job(submitted.id).state == "completed"


def test_compose_refuses_to_start_without_secrets(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "env.example", tmp_path / ".env")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("LOADMASTER_")}
    done = subprocess.run(
        ["docker-compose", "config"],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "must be set in .env - deploy/make-env HOST writes one" in done.stderr


def test_the_proxy_ends_tls_and_keeps_metrics_inside(site: Site) -> None:
    plain = httpx.get(f"http://localhost:{site.http}/login/?a=b", follow_redirects=False)
    assert (plain.status_code, plain.headers["location"]) == (308, "https://localhost/login/?a=b")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://localhost:{site.http}/login/", headers={"Host": "stranger.example"})
    page = site.get("/")
    assert page.status_code in (302, 200)
    assert "max-age=" in page.headers["strict-transport-security"]
    assert site.get("/metrics").status_code == 404
    assert site.get("/metrics/").status_code == 404
    assert site.get("/static/favicon.svg").status_code == 200
    assert site.get("/healthz", Host="stranger.example").status_code == 400
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(site.url)
    large = httpx.post(
        site.url + "/api/v1/tokens/", content=b"x" * 9_000_000, verify=site.tls, timeout=60
    )
    assert large.status_code == 413


@pytest.mark.parametrize(
    ("version", "is_spoken"),
    [
        (ssl.TLSVersion.TLSv1, False),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_the_proxy_speaks_new_versions_of_tls_alone(
    site: Site, version: ssl.TLSVersion, is_spoken: bool
) -> None:
    tls = ssl.create_default_context(cafile=site.folder / "deploy" / "certificates" / "ca.crt")
    tls.set_ciphers("ALL:@SECLEVEL=0")  # or this side would refuse the old ones
    tls.minimum_version = tls.maximum_version = version
    refused = pytest.raises(ssl.SSLError, match="alert protocol version")
    with (
        socket.create_connection(("localhost", site.https), timeout=60) as plain,
        nullcontext() if is_spoken else refused,
        tls.wrap_socket(plain, server_hostname="localhost"),
    ):
        assert is_spoken


def test_a_long_question_is_answered_in_the_read_only_container(site: Site) -> None:
    question = "from controlplane.web.nice_process import ask; print('answer', ask(int, '7'))"
    assert "answer 7" in site.manage("shell", "--no-imports", "--command", question)


def test_the_deployment_check_is_clean_in_the_container(site: Site) -> None:
    said = site.manage("check", "--deploy", "--fail-level", "WARNING")
    assert "no issues" in said


def test_share_links_are_in_no_log(site: Site) -> None:
    link = "a-link-that-nobody-else-may-know"
    assert site.get(f"/shared/simulations/{link}/").status_code == 404
    site.compose("stop", "web")
    try:
        assert site.get(f"/shared/simulations/{link}/").status_code in (502, 504)
    finally:
        site.compose("start", "web")
    until("answer", lambda: answers(site), site)
    said = site.compose("logs")
    assert '"GET /shared/..." 404' in said
    assert link not in said


def test_redis_answers_nobody_without_its_password(site: Site) -> None:
    asked = ("exec", "-T", "redis", "env", "-u", "REDISCLI_AUTH", "redis-cli", "-e", "ping")
    assert "NOAUTH" in site.compose(*asked, check=False)
    password = re.search(r"^REDIS_PASSWORD=(\w+)$", (site.folder / ".env").read_text(), re.M)
    assert password
    seen = subprocess.check_output(["ps", "-eo", "args"], text=True)
    assert "redis-server" in seen
    assert password[1] not in seen


def test_jobs_run_and_go_on_while_parts_are_scaled_and_restarted(site: Site) -> None:
    client = begin(site)
    runs_a_job(site, client)
    site.compose("up", "--detach", "--no-build", "--scale", "web=2", "--scale", "worker=2")
    until(
        "two webs and workers, all healthy",
        lambda: site.healthy(web=2, worker=2, beat=1, postgres=1, redis=1),
        site,
    )
    runs_a_job(site, client)
    for part in ("beat", "worker", "redis", "postgres", "web", "proxy"):
        site.compose("restart", "--timeout", "30", part)
        until(f"answer after {part}", lambda: answers(site), site)
    runs_a_job(site, client)
    until("health again", lambda: site.healthy(web=2, worker=2, beat=1, postgres=1, redis=1), site)


def test_who_calls_is_the_proxys_word_and_not_the_callers(site: Site) -> None:
    """Ten wrong passwords under ten invented addresses are ten from one caller, who is then shut
    out.
    """
    for number in range(12):
        httpx.post(
            site.url + "/api/v1/tokens/", json={"username": "nobody", "password": "wrong"},
            verify=site.tls, timeout=60,
            headers={"X-Forwarded-For": f"192.0.2.{number}", "Forwarded": f"for=192.0.2.{number}"},
        )  # fmt: skip
    code = (
        "from axes.models import AccessAttempt as A; print('seen',"
        " *A.objects.values_list('ip_address', flat=True).distinct())"
    )
    seen = site.manage("shell", "--command", code)
    assert re.search(r"^seen \d+\.\d+\.\d+\.\d+$", seen, re.MULTILINE), seen
    assert "192.0.2." not in seen


def test_an_address_that_floods_the_proxy_is_told_when_to_come_back(site: Site) -> None:
    with httpx.Client(verify=site.tls, timeout=60) as client:
        tries = [client.get(site.url + "/login/") for _ in range(60)]
        refused = [said for said in tries if said.status_code == 429]
        assert {said.status_code for said in tries} == {200, 429}
        assert {said.headers["retry-after"] for said in refused} == {"1"}
        assert "deploy/nginx.conf" in refused[0].text
        # Agents of a whole cluster may have one address.
        calls = [client.get(site.url + "/api/agent/v1/nothing") for _ in range(500)]
    assert {said.status_code for said in calls} == {404}


def test_the_proxy_waits_for_no_body_of_an_agent_whose_token_is_unknown(site: Site) -> None:
    node, version = UUID(int=7), f"{PROTOCOL_HEADER}: {PROTOCOL_VERSION}"
    words = f"POST /api/agent/v1/nodes/{node}/heartbeat HTTP/1.1", "Host: localhost", version
    head = "\r\n".join((*words, "Authorization: Bearer none", "Content-Length: 99999", "", ""))
    with (
        socket.create_connection(("localhost", site.https), timeout=20) as plain,
        site.tls.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(head.encode())
        assert secured.recv(65_536).startswith(b"HTTP/1.1 401")


def test_stopping_is_graceful(site: Site) -> None:
    site.compose("stop")
    listed = [
        "docker",
        "ps",
        "--all",
        "--filter",
        f"label=com.docker.compose.project={PROJECT}",
        "--format",
        "{{.Names}} {{.Status}}",
    ]
    ended = subprocess.check_output(listed, text=True).splitlines()
    assert len(ended) >= 8
    # 137 is a SIGKILL: what did not end in its time.
    assert [line for line in ended if not re.search(r"Exited \((0|143)\)", line)] == []
