"""Results that share policies keep from one round to the next."""

from __future__ import annotations

from dataclasses import dataclass

from policies.gavel.allocation.job_classes import ClassInputs, JobClasses


@dataclass(slots=True)
class RoundCache:
    """Results of the round before, each with all that it follows from, compared by value.

    The world owns it and passes it to its policy. A plan never depends on it. `job_classes`: most
    rounds see the jobs and nodes of the one before; without it a round takes a quarter longer.
    """

    job_classes: tuple[ClassInputs, JobClasses] | None = None

    def classes_of(self, inputs: ClassInputs) -> JobClasses | None:
        """Return the job classes of these inputs, if they are those of the round before."""
        if self.job_classes is not None and self.job_classes[0] == inputs:
            return self.job_classes[1]
        return None
