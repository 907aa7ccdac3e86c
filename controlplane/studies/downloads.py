"""Files that simulations came to, as answers."""

from django.http import StreamingHttpResponse

from controlplane.studies.models import Simulation
from controlplane.studies.running.folders import stored_file


def download(
    simulation: Simulation, name: str, media_type: str, **headers: str
) -> StreamingHttpResponse | None:
    """Answer with a file as it is read and unpacked; None if there is none of that name."""
    stored = stored_file(simulation, name)
    if stored is None:
        return None
    size, pieces = stored
    headers = {"Content-Length": str(size), **headers}
    return StreamingHttpResponse(pieces, content_type=media_type, headers=headers)
