"""Services of nodes: devices, enrolment, operators' actions."""
