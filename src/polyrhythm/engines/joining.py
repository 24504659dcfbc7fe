"""What the journal of a job says about how other processes join it."""

from typing import Any

from polyrhythm.engines.requests import ChildRequest
from polyrhythm.io.tcp import reached_at
from polyrhythm.observe.joining import ANY_FILE
from polyrhythm.wire.messages import Address


def listening_fields(
    request: ChildRequest, address: Address, *, indexed: bool = True
) -> dict[str, Any]:
    """What the journal says about how to join. `indexed`: the job is in the index of this user's
    jobs, where other commands find its secret and its file by the address."""
    job = request.job
    without_file = job.served or ":" in job.name
    return {
        "host": address.host,
        "port": address.port,
        "job": job.job,
        "reached_at": reached_at(address.host),
        "file": job.name if job.path else ANY_FILE if without_file else "",
        "served": job.served,
        "secret_file": request.secret_file,
        "indexed": indexed,
        "local_servers": request.local_servers,
    }
