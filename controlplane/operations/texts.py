"""Texts that people can read, collected from the source of the programs and from the templates.

They are for whoever corrects the wording: read as one list, an odd word or a second name for one
thing is noticed. Texts are found by their form, so the list has some that nobody sees (a pattern,
a line of shell) and misses those of a single word.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

PACKAGES = ("clusters", "controlplane", "foundation", "jobs", "loadmaster", "policies", "profiling")

SHOWN_ATTRIBUTES = frozenset(
    {"alt", "aria-label", "data-confirm", "data-confirm-yes", "placeholder", "title"}
)
"""Attributes of HTML whose values people read."""

TWO_WORDS = re.compile(r"[a-z]{2,},? [a-z]{2,}")
"""Two words in lower case, one after the other: what a sentence has, and a name has not."""

TEMPLATE_CODE = re.compile(r"{%.*?%}|{#.*?#}", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Text:
    """A text and where it stands; expressions in it are written in braces."""

    path: str
    line: int
    text: str


def texts(root: Path) -> list[Text]:
    """Return all texts under the project's folder, by file and line."""
    found: list[Text] = []
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            if "migrations" not in path.parts:
                found += _texts_of_module(path, path.relative_to(root).as_posix())
    for path in (root / "templates").rglob("*.html"):
        found += _texts_of_template(path, path.relative_to(root).as_posix())
    return sorted(set(found))


def _texts_of_module(path: Path, name: str) -> Iterator[Text]:
    """Yield the sentences among a module's strings, without its docstrings."""
    tree = ast.parse(path.read_text())

    # 1. Strings that are statements are documentation, and parts of f-strings are shown with them.
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)

    # 2. All others.
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = _with_expressions(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if TWO_WORDS.search(text):
            yield Text(name, node.lineno, " ".join(text.split()))


def _with_expressions(node: ast.JoinedStr) -> str:
    """Return an f-string's text with each expression in braces."""
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            parts.append(f"{{{ast.unparse(value.value)}}}")
    return "".join(parts)


def _texts_of_template(path: Path, name: str) -> Sequence[Text]:
    """Return the texts and shown attributes of a template."""
    # Tags of the template language become blanks, but for their ends of lines.
    html = TEMPLATE_CODE.sub(lambda code: "\n" * code[0].count("\n") or " ", path.read_text())
    reader = _TextReader(name)
    reader.feed(html)
    return reader.texts


class _TextReader(HTMLParser):
    """Collects the texts of a page."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.texts: list[Text] = []
        self._name = name
        self._in_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_code = tag in ("script", "style")
        for attribute, value in attrs:
            if attribute in SHOWN_ATTRIBUTES and value:
                self._keep(value)

    def handle_endtag(self, tag: str) -> None:
        self._in_code = False

    def handle_data(self, data: str) -> None:
        if not self._in_code:
            self._keep(data)

    def _keep(self, text: str) -> None:
        words = " ".join(text.split())
        if re.search("[A-Za-z]{2}", words):
            self.texts.append(Text(self._name, self.getpos()[0], words))
