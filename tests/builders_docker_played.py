"""A Docker Engine that is played, for what a real one does too seldom."""

import threading
from collections.abc import Callable
from dataclasses import replace

from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker import DockerOptions, EngineDownError
from loadmaster.agent.runtimes.docker.plan import (
    ContainerPlan,
)
from loadmaster.agent.runtimes.docker.port import (
    Container,
    EngineRefusedError,
    Image,
    ImageMissingError,
    NameTakenError,
    Stats,
)
from loadmaster.agent.runtimes.limits import CPU_PERIOD_US, quota_us

DIGEST = "sha256:" + "a" * 64
IMAGE = Image("sha256:" + "b" * 64)


class PlayedEngine:
    """An Engine in memory. `down` makes it unreachable; `lost` makes the next creation succeed
    although its answer is lost.

    `slow` creations lose their answer and go on for that many questions: the name is taken, the
    container not yet to be seen.
    """

    def __init__(self) -> None:
        self.made: dict[str, Container] = {}
        self.plans: dict[str, ContainerPlan] = {}
        self.images = {"train:1": IMAGE}
        self.down = False
        self.lost = 0
        self.slow = 0
        self.half_made: dict[str, tuple[int, Container]] = {}
        self.pull_fractions: list[float] = []
        self.pull_error = ""
        self.pulls: list[str] = []
        self.started: list[str] = []
        self.quotas_us: dict[str, int | None] = {}
        self.refuses_quotas = False
        self.refused_quotas: list[str] = []
        self.pulling = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def _answer(self) -> None:
        if self.down:
            raise EngineDownError("no answer")

    def runs(self, owner: str) -> dict[RunId, Container]:
        self._answer()
        found = {
            RunId.parse(name): c
            for name, c in self.made.items()
            if c.labels.get("loadmaster.owner") == owner
        }
        return {run: container for run, container in found.items() if run}

    def inspect(self, name: str) -> Container | None:
        self._answer()
        if name in self.half_made:
            left, container = self.half_made.pop(name)
            if left > 0:
                self.half_made[name] = left - 1, container
            else:
                self.made[name] = container
                return None  # as it was when the question came
        return self.made.get(name)

    def find(self, reference: str) -> Image | None:
        self._answer()
        return self.images.get(reference)

    def pull(
        self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]
    ) -> None:
        self.pulls.append(reference)
        for fraction in self.pull_fractions:
            tell(fraction)
        self.pulling.set()
        self.go_on.wait(20)
        if self.pull_error:
            raise ImageMissingError(self.pull_error)
        self.images[reference] = IMAGE

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        self._answer()
        if plan.name in self.made or plan.name in self.half_made:
            raise NameTakenError(plan.name)
        self.plans[plan.name] = plan
        self.quotas_us[plan.name] = plan.cpu_quota_us
        container = Container("created", plan.labels, image=plan.image)
        if self.slow:
            self.half_made[plan.name], self.slow = (self.slow, container), 0
            raise EngineDownError("the answer took too long")
        self.made[plan.name] = container
        if self.lost:
            self.lost -= 1
            raise EngineDownError("the answer was lost")

    def start(self, name: str) -> None:
        self._answer()
        self.started.append(name)
        self.made[name] = replace(self.made[name], state="running")

    def kill(self, name: str) -> None:
        self.made[name] = replace(self.made[name], state="exited", exit_code=137, ended_at_s=1.0)

    def cores(self, name: str) -> float | None:
        self._answer()
        quota = self.quotas_us.get(name)
        return None if quota is None else quota / CPU_PERIOD_US

    def limit_cores(self, name: str, cores: float) -> None:
        self._answer()
        if self.refuses_quotas:
            self.refused_quotas.append(name)
            raise EngineRefusedError("the container was made with NanoCPUs")
        self.quotas_us[name] = quota_us(cores)

    def terminate(self, name: str) -> None:
        self.kill(name)

    def remove(self, name: str) -> None:
        self._answer()
        self.made.pop(name, None)

    def read_file(self, name: str, path: str) -> bytes | None:
        return b"" if path == "/bin/sh" else None

    def last_words(self, name: str) -> str:
        return ""

    def stats(self, name: str) -> Stats | None:
        return Stats(1.0, 2)

    def close(self) -> None:
        """Nothing is held."""
