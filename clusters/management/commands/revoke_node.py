"""manage.py revoke_node CLUSTER NODE: end a node's token; its agent is refused from now on."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from clusters.management.operators import the_cluster, the_node
from clusters.services import node_revoke


class Command(BaseCommand):
    """For a node that goes for good, or whose token somebody else may have."""

    help = (
        "End a node's token. What runs there ends with its lease; enrolling the machine again gives"
        " the node a new token"
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("cluster")
        parser.add_argument("node", help="its name or id")

    def handle(self, *args: Any, cluster: str, node: str, **options: Any) -> None:
        """Do it and say what follows."""
        found = node_revoke(the_node(the_cluster(cluster), node))
        self.stdout.write(
            f"the token of {found} has ended; its agent is refused and what runs there ends with"
            " its lease"
        )
