"""The agent: pulls the server's decisions on a node, makes them processes exactly once, and reports
what happens.

`guard` is the parent of every job and outlives the agent; `reconcile` decides, `loop` acts;
`runtimes` are how a job is run.
"""
