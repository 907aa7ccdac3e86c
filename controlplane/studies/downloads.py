"""Files that simulations came to, as answers."""

from django.http import StreamingHttpResponse

from controlplane.studies.models import Simulation
from controlplane.studies.running.folders import stored_file


def download(
    simulation: Simulation, name: str, kind: str, **headers: str
) -> StreamingHttpResponse | None:
    """Answer with a file as it is read and unpacked; None if there is none of that name."""
    found = stored_file(simulation, name)
    if found is None:
        return None
    size, pieces = found
    said = {"Content-Length": str(size), **headers}
    return StreamingHttpResponse(pieces, content_type=kind, headers=said)
