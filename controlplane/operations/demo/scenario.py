"""Table V of the ANDREAS paper with minutes for hours: submission, duration, due date."""

from dataclasses import dataclass

from controlplane.operations.bootstrap import CLUSTER, TEAM

TIME_SCALE = 60.0
"""Seconds of the paper per second of the demo."""

STEPS_PER_EPOCH = 4

SECONDS_PER_EPOCH: dict[str, dict[str, dict[int, float]]] = {
    "lstm-big": {"V100": {1: 43.0842, 2: 30.5512}, "T4": {1: 110.7112}},
    "lstm-small": {"V100": {1: 43.0261, 2: 30.5871}, "T4": {1: 110.6581}},
    "efficientnet": {"V100": {1: 51.6221, 2: 41.2372}, "T4": {1: 88.9881}},
    "convnet": {"V100": {1: 20.5382, 2: 17.8042}, "T4": {1: 41.2582}},
}
"""Seconds per epoch measured by the paper's authors on ARMIDA."""

P100_OVER_V100 = 1.5
"""Ratio of the FP32 peaks (14, 9.3 TFLOP/s), for a type that the paper lacks."""

PROGRAMS = {
    "lstm-big": ("loadmaster.demo.recurrent", "--size", "big", "--batch-size", "64"),
    "lstm-small": ("loadmaster.demo.recurrent", "--size", "small", "--batch-size", "64"),
    "efficientnet": ("loadmaster.demo.dense", "--batch-size", "64"),
    "convnet": ("loadmaster.demo.convnet", "--batch-size", "64"),
}
"""Programs for the paper's applications: networks on data of a package."""

WEIGHTS = (0.00025371, 0.00044399)
"""Tardiness weights of the lowest and highest of five priorities, in EUR/s (ANDREAS)."""


@dataclass(frozen=True, slots=True)
class DemoJob:
    """Row of Table V; `submitted_s`, `due_s` (after submission) in the paper's seconds."""

    name: str
    application: str
    epochs: int
    submitted_s: float
    due_s: float
    priority: int

    @property
    def arrival_s(self) -> float:
        return self.submitted_s / TIME_SCALE

    def request(self, image: str = "") -> dict[str, object]:
        """Submission of the job; with an image it runs in a container."""
        runtime = {"runtime": "docker", "image": image} if image else {"runtime": "process"}
        lowest, highest = WEIGHTS
        weight = lowest + (highest - lowest) * (self.priority - 1) / 4
        return {
            "name": self.name,
            "cluster": CLUSTER,
            "team": TEAM,
            **runtime,
            "command": ["python", "-m", *PROGRAMS[self.application]],
            "kind": self.application,
            "epochs": self.epochs,
            "steps_per_epoch": STEPS_PER_EPOCH,
            "gpus": "1..2",
            "cores": 0.5,
            "memory_gb": 0.5,
            "due": f"+{self.due_s / TIME_SCALE:.0f}s",
            "priority": self.priority,
            "tardiness_weight": round(weight, 8),
        }


JOBS = (
    DemoJob("J6", "efficientnet", 80, 0, 3600, 4),
    DemoJob("J9", "convnet", 160, 1200, 2600, 2),
    DemoJob("J10", "convnet", 80, 2400, 7600, 3),
    DemoJob("J7", "lstm-big", 160, 3600, 17600, 3),
    DemoJob("J8", "lstm-small", 160, 4800, 7600, 3),
    DemoJob("J1", "lstm-big", 60, 6000, 5600, 5),
    DemoJob("J2", "lstm-small", 60, 7200, 12600, 2),
    DemoJob("J3", "efficientnet", 60, 8400, 11600, 1),
)


def step_s(gpu_type: str) -> dict[str, dict[int, float]]:
    """Seconds per step of each application on that many emulated GPUs of the type."""
    measured_type = gpu_type
    slowdown = 1.0
    if gpu_type == "P100":  # the paper has none: it is slower than a V100 by a factor
        measured_type = "V100"
        slowdown = P100_OVER_V100
    scale = slowdown / TIME_SCALE / STEPS_PER_EPOCH
    times: dict[str, dict[int, float]] = {}
    for application, by_type in SECONDS_PER_EPOCH.items():
        by_gpus = by_type[measured_type]
        times[application] = {gpus: round(s * scale, 5) for gpus, s in by_gpus.items()}
    return times
