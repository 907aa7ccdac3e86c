"""Differences of each experiment from the paper's."""

STEADY = """Of seed 0 the jobs are the published program's own stream where its file is there, else
drawn as the paper says. Average over the window of jobs in a steady state. Rounds of 6 minutes and,
other than in the paper, also whenever a job arrives or ends; a GPU whose job ends is given on at
once. Gangs stay on one node of 8 GPUs."""

RHO = f"""{STEADY}
rho of a job: its completion time over the one it would have had with 1/n of each type's GPUs to
itself all along, n being the jobs there at each moment of the same run."""

FIFO_NOTE = f"""{STEADY}
The published program's agnostic FIFO gives out more GPUs than there are; no figure of it stands
here."""

PRIORITIES = f"""{STEADY}
A high priority is five times the weight, as in the published program; jobs are drawn for every
seed."""

MAKESPAN = """All jobs are there at the start; the longest alone may take a week, so that few jobs
say little about a policy."""

TIMELINE = """No job ends: what is drawn is the allocation after each arrival (water filling, before
rounds). Throughput is normalised to equal time on all GPUs. Static partition: every entity's part
of each type's GPUs by its weight, of which each of its jobs has the same part, and what a job
cannot use lost; agnostic: the same policy as if GPUs were alike, which does give on what is left
over. Of 18 jobs drawn by chance from table 2 the loss differs from seed to seed."""

SCALING = """Processor time of one core from a snapshot to exact shares, median of three after a
warm-up; as many GPUs as there are jobs / 4 of each type. Jobs of like kinds are one class here,
which is exact; the published figures are of its linear programs by job."""

ROUNDS = """LAS, aware, continuous-single at {load:g} jobs per hour. Ideal: every job progresses all
the time with exactly its share, made anew at every arrival and end. No cost of a restart is
counted, as in the paper's figure; table 3 has them."""

ESTIMATES = """12 GPUs, 4 of each type. Estimated: a fifth of all pairs was measured before,
everything else is what the estimator makes of it; jobs run at the measured speeds. The paper prints
no number: 'a very small decrease' at high load."""

COST = """ResNet-50 and A3C, half each; 0.5, 1, 2, 4 or 8 days on a V100, SLO 1.2, 2 or 10 times
that. The paper does not say how many GPUs there are nor when jobs come: here they arrive at random
on a cluster that they fill to a third. Dollars per GPU hour: 2.48, 1.46, 0.45. The paper's
objective is a ratio, its published program's a sum (published form). How many SLOs least cost
violates hangs on which GPU is cheapest for a model: at these prices that is the P100 for ResNet-50,
not the V100 as the paper has it, and SLOs of 1.2 durations are violated there; the ratio leaves
ResNet-50, whose progress costs twice that of A3C, no more than its floor."""

TABLE_3 = """We have no cluster of 48 GPUs: the paper's physical column is held against a second
simulation of ours in which launches take 10 s, stops 5 s, restarts 5 s more, and speeds vary by 5%.
It says how far the simulator's results depend on what it leaves out, not how a physical run would
end. Recorded traces of the published program, rounds of 20 minutes; completion times of jobs 36 to
60."""
