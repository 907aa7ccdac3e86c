"""manage.py revoke_node CLUSTER NODE: end a node's token; its agent is refused from now on."""

from argparse import ArgumentParser
from typing import Any

from clusters.management.operators import OperatorCommand, the_cluster, the_node
from clusters.services.nodes import node_revoke


class Command(OperatorCommand):
    help = (
        "End a node's token. What runs there ends with its lease; enrolling the machine again gives"
        " the node a new token"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster")
        parser.add_argument("node", help="its name or id")

    def handle(self, *args: Any, cluster: str, node: str, **options: Any) -> None:
        revoked_node = node_revoke(the_node(the_cluster(cluster), node))
        self.stdout.write(
            f"the token of {revoked_node} has ended; its agent is refused and what runs there ends"
            " with its lease"
        )
