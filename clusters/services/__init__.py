"""Services for nodes: devices and their samples, enrolment, operators' actions."""
