"""Building blocks shared by policies: turning queues and shares into plans."""
