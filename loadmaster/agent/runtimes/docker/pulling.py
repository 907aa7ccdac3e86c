"""Image references and the progress of a pull. Pure."""

from typing import Any

READY = frozenset({"Already exists", "Pull complete"})
DOWNLOADED = frozenset({"Download complete", "Verifying Checksum"})
UNDER_WAY = frozenset({"Downloading", "Extracting", "Waiting", "Pulling fs layer"})
"""States of a layer in the Engine's messages."""


class PullProgress:
    """Fraction of an image that has been pulled: half of a layer is download, half unpacking.

    Layers of unknown size count as much as the others on average. The fraction never decreases.
    """

    def __init__(self) -> None:
        self._layer_fractions: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        """Bytes of the layers whose size is known."""
        self._fraction = 0.0

    def update(self, event: dict[str, Any]) -> float:
        """Read a message of the Engine; return the fraction of the image, 0 to 1."""
        layer = str(event.get("id") or "")
        status = str(event.get("status") or "")
        if layer and status in READY | DOWNLOADED | UNDER_WAY:
            detail = event.get("progressDetail") or {}
            current = float(detail.get("current") or 0)
            total = float(detail.get("total") or 0)
            self._update_layer(layer, status, current, total)
        self._fraction = max(self._fraction, self._weighted_mean())
        return self._fraction

    def _update_layer(self, layer: str, status: str, current: float, total: float) -> None:
        """Note the fraction of a layer; `current` and `total`: bytes of its present state."""
        part = 0.0
        if total > 0:
            self._sizes[layer] = total
            part = min(1.0, current / total)
        if status in READY:
            fraction = 1.0
        elif status in DOWNLOADED:
            fraction = 0.5
        elif status == "Extracting":
            fraction = 0.5 + 0.5 * part
        else:
            fraction = 0.5 * part
        self._layer_fractions[layer] = max(fraction, self._layer_fractions.get(layer, 0.0))

    def _weighted_mean(self) -> float:
        """Return the mean of the layers' fractions, weighted by their sizes."""
        if not self._layer_fractions:
            return 0.0
        mean_size = 1.0
        if self._sizes:
            mean_size = sum(self._sizes.values()) / len(self._sizes)
        pulled = 0.0
        total = 0.0
        for layer, fraction in self._layer_fractions.items():
            size = self._sizes.get(layer, mean_size)
            pulled += fraction * size
            total += size
        return pulled / total


def repository_of(image: str) -> str:
    """Return the name of an image without tag and digest."""
    name, _, _ = image.partition("@")
    host, slash, last = name.rpartition("/")  # a colon before the slash is that of a port
    repository, _, _ = last.partition(":")
    return f"{host}{slash}{repository}"


def pinned(image: str, digest: str) -> str:
    """Return the image's name with a digest in place of its tag."""
    return f"{repository_of(image)}@{digest}"


def digest_of(image: str, image_id: str, digests: tuple[str, ...]) -> str:
    """Return the digest of an image by its name; else one of another name, else the image's id.

    `digests`: those that the Engine has of it, as NAME@DIGEST.
    """
    by_name = {}
    for item in digests:
        name, _, digest = item.partition("@")
        by_name[name] = digest
    repository = repository_of(image)
    own_names = (repository, f"docker.io/{repository}", f"docker.io/library/{repository}")
    for name, digest in by_name.items():
        if name in own_names:
            return digest
    for digest in by_name.values():
        return digest
    return image_id
