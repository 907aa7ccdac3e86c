"""The client's calls for simulations, and study files with traces read in."""

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadmaster.client.rest import Rest, WaitTimeoutError, as_object, content, segment
from loadmaster.client.results import Simulation, read
from loadmaster.strict_yaml import read_fields, read_text

LARGEST = 2_000_000
"""Most bytes of a study with its files that a server accepts."""

REMEDY = "; manage.py simulate takes larger ones"
"""End of the refusal of a larger one."""

TEXTS = {"path": "text", "throughputs": "tables"}
"""Options of a workload that name a file, and those that hold its text instead."""

SIMULATED = ("done", "failed", "cancelled")


class SimulationCalls:
    """Calls about simulations."""

    _rest: Rest

    def simulate(self, study: Mapping[str, Any]) -> Simulation:
        """Simulate a study: policies on a cluster and workload. Raises InvalidError by field."""
        return read(Simulation, self._rest.call("POST", "simulations/", json=dict(study)))

    def simulation(self, simulation_id: str) -> Simulation:
        """One simulation; `document` is its study."""
        return self._simulation("GET", simulation_id)

    def simulations(
        self, *, limit: int | None = None, state: str | None = None, mine: bool | None = None
    ) -> Iterator[Simulation]:
        """Your simulations and your teams', newest first."""
        filters = {"state": state, "mine": "true" if mine else None}
        return (read(Simulation, row) for row in self._rest.pages("simulations/", limit, filters))

    def cancel_simulation(self, simulation_id: str) -> Simulation:
        """Stop a simulation for good."""
        return self._simulation("POST", simulation_id, "cancel/")

    def delete_simulation(self, simulation_id: str) -> None:
        """Delete a simulation and its results."""
        self._rest.call("DELETE", f"simulations/{segment(simulation_id)}/")

    def share_simulation(self, simulation_id: str) -> Simulation:
        """Create a link /shared/simulations/{share}/ that shows a simulation to anybody."""
        return self._simulation("POST", simulation_id, "share/")

    def unshare_simulation(self, simulation_id: str) -> Simulation:
        """Take a simulation's link back."""
        return self._simulation("DELETE", simulation_id, "share/")

    def simulation_file(self, simulation_id: str, name: str) -> bytes:
        """A result: results.json, jobs.csv or report.html. NotFoundError while missing."""
        path = f"simulations/{segment(simulation_id)}/{segment(name)}"
        answer = self._rest.send("GET", path, repeatable=True)
        if answer.is_error:
            content(answer)
        return bytes(answer.content)

    def wait_for_simulation(
        self, simulation_id: str, *, timeout_s: float | None = None, poll_s: float = 1.0
    ) -> Simulation:
        """Wait until a simulation is over, and return it. Raises WaitTimeoutError."""
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            simulation = self.simulation(simulation_id)
            if simulation.state in SIMULATED:
                return simulation
            if time.monotonic() >= end_s:
                state = f"is still {simulation.state} after {timeout_s:g} s"
                raise WaitTimeoutError(f"simulation {simulation_id} {state}")
            time.sleep(poll_s)

    def what_if(
        self, cluster: str, policy: str, parameters: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Decisions of another policy for a cluster now. Nothing is changed."""
        body: dict[str, Any] = {"policy": policy}
        if parameters is not None:
            body["parameters"] = dict(parameters)
        path = f"clusters/{segment(cluster)}/what-if/"
        return as_object(self._rest.call("POST", path, json=body))

    def _simulation(self, method: str, simulation_id: str, rest: str = "") -> Simulation:
        path = f"simulations/{segment(simulation_id)}/{rest}"
        return read(Simulation, self._rest.call(method, path))


def read_study_file(path: Path) -> dict[str, Any]:
    """Read a study, with the content of the files it names in place of their names.

    Paths count from the study's folder. Raises DocumentError, naming what cannot be read.
    """
    study = _fields(path)
    cluster = study.get("cluster")
    if isinstance(cluster, str):
        study["cluster"] = _fields(path.parent / cluster)
    workload = study.get("workload")
    if isinstance(workload, dict):
        study["workload"] = _with_texts(workload, path.parent)
    return study


def _with_texts(workload: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a workload with the content of its files in place of their names."""
    with_texts = dict(workload)
    for path_option, text_option in TEXTS.items():
        file = workload.get(path_option)
        if not isinstance(file, str):
            continue
        del with_texts[path_option]
        with_texts[text_option] = read_text(folder / file, LARGEST, REMEDY, any_encoding=True)
        if path_option == "path":
            with_texts.setdefault("name", Path(file).name)
    return with_texts


def _fields(path: Path) -> dict[str, Any]:
    return read_fields(path, LARGEST, example="policies: [fifo]", remedy=REMEDY)
