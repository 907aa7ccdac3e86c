"""Load of many agents, submitters and readers on a server, measured as JSON lines."""
