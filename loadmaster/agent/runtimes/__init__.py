"""How a job is run: one file per way. `process` runs a command on the host under a guard, `fake`
plays a job in virtual time.
"""
