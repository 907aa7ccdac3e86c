"""The agent's connection to the server: enrolment, session, calls, and uploads."""
