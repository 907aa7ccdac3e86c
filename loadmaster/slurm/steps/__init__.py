"""Steps of a script on its node: tasks, GPUs, programs."""
