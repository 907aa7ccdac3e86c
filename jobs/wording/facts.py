"""Facts of a stored reason for waiting, in words: names, amounts and times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from policies.placement.waiting.reasons import MOST_NAMED

UNITS: Mapping[str, tuple[str, str]] = {
    "gpus": ("GPU", "GPUs"),
    "healthy_gpus": ("healthy GPU", "healthy GPUs"),
    "cores": ("core", "cores"),
    "memory_gb": ("GB of memory", "GB of memory"),
    "units": ("unit", "units"),
}
"""Singular and plural of each resource of which a node may have too little."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Stored details of a reason for waiting, for one reader.

    `names`: by id, those of nodes, and of the jobs that the reader may see. `now`: times that are
    not later have passed and are not shown.
    """

    detail: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    now: datetime | None = None

    @property
    def jobs(self) -> str:
        """Jobs in the way, shortened."""
        return self.some_jobs(texts_of(self.detail.get("jobs")))

    def some_jobs(self, jobs: Sequence[str], joined_by: str = "and") -> str:
        """Return these jobs, shortened; those that the reader may not see by their number."""
        known = [self.names[job] for job in jobs if job in self.names]
        hidden = len(jobs) - len(known)
        of_others = "a job of another team" if hidden == 1 else f"{hidden} jobs of other teams"
        if len(jobs) >= MOST_NAMED:
            of_others = "jobs of other teams"
        return _short(known, hidden, of_others, joined_by)

    @property
    def nodes(self) -> str:
        """Nodes in question, shortened."""
        hidden = self._hidden("nodes")
        of_hidden = "a node" if hidden == 1 else f"{hidden} nodes"
        return _short(self._known("nodes"), hidden, of_hidden)

    def needs(self, what: str) -> bool:
        """Return True if the job asks for this.

        `what`: `cores` (and no GPU), `several` cores or GPUs, or certain GPU `types`.
        """
        return what in texts_of(self.detail.get("needs"))

    @property
    def is_one_node(self) -> bool:
        return len(texts_of(self.detail.get("nodes"))) == 1

    def texts(self, name: str, joined_by: str = "and") -> str:
        """Texts of a detail, shortened."""
        return _short(texts_of(self.detail.get(name)), 0, "", joined_by)

    def at(self, name: str) -> str:
        """Time of a detail, "" if there is none or it has passed."""
        return time_in_words(self.detail.get(name), self.now)

    def lists(self) -> tuple[tuple[str, str], ...]:
        """Everything that is known, with headings, for a reader who asks."""
        lists = [
            ("Nodes", self._all("nodes", "of unknown name")),
            ("Jobs", self._all("jobs", "of other teams")),
            ("Not here", ", ".join(texts_of(self.detail.get("missing")))),
            ("There are", ", ".join(texts_of(self.detail.get("offered")))),
            ("Too little", "; ".join(lack_in_words(lack) for lack in lacks_of(self.detail))),
            ("Price", _price(self.detail)),
            ("Last failure", str(self.detail.get("why") or "")),
        ]
        return tuple((heading, text) for heading, text in lists if text)

    def _known(self, name: str) -> list[str]:
        """Return the names, among those of a list of ids, that the reader may see."""
        return [self.names[key] for key in texts_of(self.detail.get(name)) if key in self.names]

    def _hidden(self, name: str) -> int:
        """Return the number of ids of a list whose names the reader may not see."""
        return len(texts_of(self.detail.get(name))) - len(self._known(name))

    def _all(self, name: str, others: str) -> str:
        """Return all names of a list, and the number of `others`, whose names are hidden."""
        words = self._known(name)
        hidden = self._hidden(name)
        if hidden:
            words.append(f"{hidden} {others}")
        if len(texts_of(self.detail.get(name))) >= MOST_NAMED:
            words.append("perhaps more")
        return ", ".join(words)


def _price(detail: Mapping[str, Any]) -> str:
    """Return price and worth of a job whose GPUs cost more than it is worth to the policy."""
    price = detail.get("price")
    worth = detail.get("worth", 0.0)
    if not isinstance(price, (int, float)) or not isinstance(worth, (int, float)):
        return ""
    return f"its GPUs cost {price:.2g} now, and it is worth {worth:.2g} to the policy"


def time_in_words(seconds: object, now: datetime | None) -> str:
    """Return a moment as 22:00 UTC, with its day unless today; "" if it is no later than now."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 4e9:
        return ""
    moment = datetime.fromtimestamp(seconds, UTC)
    if now is not None and moment <= now:
        return ""
    is_today = now is not None and moment.date() == now.astimezone(UTC).date()
    return f"{moment:%H:%M} UTC" if is_today else f"{moment:%Y-%m-%d %H:%M} UTC"


def _short(known: Sequence[str], hidden: int, of_hidden: str, joined_by: str = "and") -> str:
    """Return the first name and the number of others, or two names, or `of_hidden`.

    A list that may have been cut says "others" without their number.
    """
    if not known:
        return of_hidden if hidden else ""
    others = len(known) + hidden - 1
    if not others:
        return known[0]
    if others == 1 and not hidden:
        return f"{known[0]} {joined_by} {known[1]}"
    if others + 1 >= MOST_NAMED:
        return f"{known[0]} {joined_by} others"
    nouns = "other" if others == 1 else "others"
    return f"{known[0]} {joined_by} {others} {nouns}"


def texts_of(values: object) -> list[str]:
    """Return a stored list as texts; [] if it is none."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [str(value) for value in values]


def lacks_of(detail: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (name, amount wanted, most that a node has) of what nodes have too little of."""
    stored = detail.get("lacks")
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return []
    return [(str(name), float(wanted), float(most)) for name, wanted, most in stored]


def lack_in_words(lack: tuple[str, float, float]) -> str:
    """Return a shortage of `lacks_of` in words, after "It needs"."""
    name, wanted, most = lack
    has = f"at most {most:g}" if most else "none"
    return f"{amount_in_words(name, wanted)}, and nodes that suit it have {has}"


def amount_in_words(name: str, amount: float) -> str:
    """Return an amount in words, as "1 core", "64 GB of memory" or "2 fpga"."""
    one, several = UNITS.get(name, (name, name))
    return f"{amount:g} {one if amount == 1 else several}"
