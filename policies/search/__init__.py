"""Search over simulated schedules of the whole queue, at least cost."""
