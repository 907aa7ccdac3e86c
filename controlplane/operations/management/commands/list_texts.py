"""manage.py list_texts: list the texts of messages, pages and help, to read them in one go."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.operations.texts import texts


class Command(BaseCommand):
    help = "List the texts of messages, pages and help with file and line, for correcting them"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folders", nargs="*", help="list only files whose path begins so")

    def handle(self, *args: Any, folders: list[str], **options: Any) -> None:
        for text in texts(Path(settings.BASE_DIR)):
            if not folders or text.path.startswith(tuple(folders)):
                self.stdout.write(f"{text.path}:{text.line}: {text.text}")
