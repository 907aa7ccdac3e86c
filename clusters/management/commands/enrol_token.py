"""manage.py enrol_token CLUSTER [--node NODE]: a token that enrols one machine."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from clusters.management.operators import OperatorCommand, finite, the_cluster, the_node
from clusters.models.nodes import Role
from clusters.services.enrolment import issue_enrolment_token


class Command(OperatorCommand):
    help = (
        "Print a single-use token with which `loadmaster agent` enrols one machine into a cluster."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("cluster", help="name of the cluster the machine joins")
        add("--role", choices=Role.values, default=Role.PRODUCTION, help="what the node is for")
        add("--node", default="", help="a node whose machine is gone: the new one takes its place")
        add("--hours", type=finite, default=1.0, help="how long the token may be used")

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = the_cluster(options["cluster"])
        if not 0 < options["hours"] <= 24 * 365:
            raise CommandError(
                f"--hours must be more than 0 and at most a year, not {options['hours']}"
            )
        node = the_node(cluster, options["node"]) if options["node"] else None
        valid_s = options["hours"] * 3600
        token = issue_enrolment_token(cluster, options["role"], valid_s=valid_s, node=node)
        self.stdout.write(token)
