"""The simulated world: a virtual clock, jobs by column, and what a run comes to."""
