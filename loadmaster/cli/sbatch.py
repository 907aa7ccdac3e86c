"""`loadmaster submit --sbatch`: leaves sbatch's words to be read as sbatch reads them."""

from typing import Any

from typer.core import TyperCommand

OPTION = "--sbatch"
STANDARD_INPUT = "-"


class SubmitCommand(TyperCommand):
    """Command that leaves all words after `--sbatch` to be read as sbatch reads them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after `--sbatch` in `ctx.meta`."""
        for place, word in enumerate(args):
            name, equals, first = word.partition("=")
            if name == OPTION:
                words = args[place + 1 :]
                if equals:
                    words = [first, *words]
                ctx.meta[OPTION] = words
                # Typer itself sees no more than that the option is there.
                args = [*args[:place], OPTION, STANDARD_INPUT]
                break
        return super().parse_args(ctx, args)
