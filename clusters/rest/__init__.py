"""REST of clusters, nodes, GPU types, policies and enrolment tokens."""
