"""Fairness among teams, and in each among users or by a queue (Gavel, section 4.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot, TeamOrder, TeamView
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, queue_positions
from policies.gavel.solvers.fairness import Entity, hierarchical_shares

AS_TEAMS_SAY = "team"
"""Value of `inside`: each team's own setting counts."""


@dataclass(frozen=True, slots=True)
class Hierarchical(SharePolicy):
    """Time on unlike GPUs by teams' weights, and in each among its users, or first in, first out.

    A team's users have equal parts, and their jobs share theirs by weights. By water filling: what
    a user cannot use goes to the team's others, what a team cannot use to other teams. The plan's
    objective is the first level: the least throughput over that with equal time on all GPUs, over
    the part of its team's weight that a job had then.
    """

    name: ClassVar[str] = "hierarchical"

    inside: str = parameter(
        AS_TEAMS_SAY,
        meaning=(
            "how jobs share what their team has: team: as each team is set; fairness: by their"
            " weights; fifo: in a queue"
        ),
        choices=(AS_TEAMS_SAY, *(order.value for order in TeamOrder)),
    )
    users: bool = parameter(
        True,
        meaning=(
            "users of a team without a queue have equal parts of what it has; else all its jobs"
            " share by their weights alone"
        ),
    )

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        teams = tuple(dict.fromkeys(snapshot.jobs.columns.others["team"]))
        queues = set()
        for team, entity in zip(teams, self._entities(snapshot, teams), strict=True):
            if entity.fifo:
                queues.add(team)
        return GroupingOptions(teams=True, users=self.users, queues=frozenset(queues))

    def _depend_on(self, snapshot: Snapshot) -> str:
        return repr(snapshot.teams)

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        entities = self._entities(observed.snapshot, observed.classes.entities)
        position = queue_positions(observed) if any(entity.fifo for entity in entities) else None
        return partial(hierarchical_shares, entities=entities, position=position)

    def _entities(self, snapshot: Snapshot, names: Sequence[str]) -> list[Entity]:
        """Return an entity for each of these names of teams; those of one name are its parts."""
        teams: Mapping[str, TeamView] = {team.name: team for team in snapshot.teams}
        whole = {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}
        entities = []
        for name in names:
            team = teams.get(name, TeamView(name))
            order = team.order if self.inside == AS_TEAMS_SAY else TeamOrder(self.inside)
            entities.append(Entity(team.weight, order is TeamOrder.FIFO, whole[name]))
        return entities
