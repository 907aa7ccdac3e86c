"""Image references and the progress of a pull. Pure."""

from typing import Any

READY = frozenset({"Already exists", "Pull complete"})
DOWNLOADED = frozenset({"Download complete", "Verifying Checksum"})
UNDER_WAY = frozenset({"Downloading", "Extracting", "Waiting", "Pulling fs layer"})


class PullProgress:
    """Fraction of an image that is there: half of each layer is download, half unpacking.

    Layers of unknown size count as much as the known ones do on average; it never goes back.
    """

    def __init__(self) -> None:
        self._done: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        self._told = 0.0

    def update(self, event: dict[str, Any]) -> float:
        """Process a message of the Engine; return the fraction that is there now, 0 to 1."""
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        detail = event.get("progressDetail") or {}
        if layer and status in READY | DOWNLOADED | UNDER_WAY:
            current, total = (float(detail.get(name) or 0) for name in ("current", "total"))
            self._note(layer, status, current, total)
        self._told = max(self._told, self._fraction())
        return self._told

    def _note(self, layer: str, status: str, current: float, total: float) -> None:
        if total > 0:
            self._sizes[layer] = total
        part = min(1.0, current / total) if total > 0 else 0.0
        if status in READY:
            done = 1.0
        elif status in DOWNLOADED:
            done = 0.5
        else:
            done = 0.5 * part + (0.5 if status == "Extracting" else 0.0)
        self._done[layer] = max(done, self._done.get(layer, 0.0))

    def _fraction(self) -> float:
        if not self._done:
            return 0.0
        usual = sum(self._sizes.values()) / len(self._sizes) if self._sizes else 1.0
        sizes = {layer: self._sizes.get(layer, usual) for layer in self._done}
        return sum(self._done[layer] * size for layer, size in sizes.items()) / sum(sizes.values())


def repository_of(image: str) -> str:
    """The name of an image without tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    return f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]


def pinned(image: str, digest: str) -> str:
    """The image's name with a digest in place of its tag."""
    return f"{repository_of(image)}@{digest}"


def digest_of(image: str, image_id: str, digests: tuple[str, ...]) -> str:
    """The digest an image's name resolved to: its registry's, another's, or the id."""
    repository = repository_of(image)
    known = {name: digest for name, _, digest in (item.partition("@") for item in digests)}
    names = (repository, f"docker.io/{repository}", f"docker.io/library/{repository}")
    own = [digest for name, digest in known.items() if name in names]
    return next(iter([*own, *known.values()]), image_id)
