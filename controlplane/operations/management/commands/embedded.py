"""Start everything on this machine and stay until Ctrl-C."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.operations.embedded.local import Local, running_locally, welcome
from controlplane.operations.embedded.programs import LocalRuntime
from controlplane.operations.embedded.supervisor import EmbeddedError
from loadmaster.features import RUNTIMES


class Command(BaseCommand):
    help = (
        "Start everything on this machine and stay until Ctrl-C; a later start goes on from there"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        text = "port of the pages; if it is taken, the next free one"
        parser.add_argument("--port", type=int, default=8000, help=text)
        text = "run jobs as processes or as containers"
        parser.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help=text)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            runtime = LocalRuntime(options["runtime"])
            with running_locally(
                options["port"], self._say, runtime, on_pages=self._welcome
            ) as local:
                self._say("Everything runs. Stop with Ctrl-C.")
                while True:
                    local.supervisor.pause(3600.0)
        except KeyboardInterrupt:
            self.stdout.write("Stopped. The next `make up` goes on from here.")
        except EmbeddedError as error:
            raise CommandError(str(error)) from error

    def _say(self, line: str) -> None:
        """Print a line now, also where the output is a file or a pipe."""
        self.stdout.write(line)
        self.stdout.flush()

    def _welcome(self, local: Local) -> None:
        for line in welcome(local):
            self._say(line)
