"""`repertory dashboard`: from the words of the command line to a page that answers.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from repertory.errors import UsageError
from services.commands.arguments import File, Json, Whole

Runs = Annotated[Positional[Path], arg(metavar="RUNS")]


def dashboard(
    runs: Runs = Path("runs"),
    /,
    host: str = "127.0.0.1",
    port: Whole = None,
    allow_host: tuple[str, ...] = (),
    read_only: bool = False,
    tls_certificate: File = None,
    tls_key: File = None,
    insecure: bool = False,
    json_: Json = False,
) -> None:
    """Show and steer runs in a browser, while they go on and afterwards.

    Args:
        runs: A folder of runs, or one run.
        host: Where it listens. Others than this machine need TLS; an SSH tunnel needs nothing.
        port: Default: the first free one from 8600 on.
        allow_host: Further names by which browsers may call it, as that of a proxy.
        read_only: Nobody can steer.
        tls_certificate: Of this server.
        tls_key: The key of that certificate.
        insecure: Listen for others without TLS.
        json_: Print one line of JSON when ready: address, link, token_file, pid.
    """
    import os

    from services.dashboard.server import Dashboard, DashboardConfig

    if port is not None and not 0 <= port < 65536:
        raise UsageError(f"--port {port} is refused: give 0 to 65535")
    logging.getLogger("services.dashboard").setLevel(logging.INFO)
    config = DashboardConfig(
        runs,
        host,
        port,
        allow_host,
        tls_certificate,
        tls_key,
        insecure,
        read_only,
    )
    server = Dashboard(config)
    document = {
        "address": server.address,
        "link": server.link(),
        "token_file": str(config.token_file),
        "pid": os.getpid(),
    }

    def say() -> None:
        if json_:
            print(json.dumps(document), flush=True)
            return
        print(f"dashboard of {runs}: {server.address}")
        print(f"log in by this link, once within ten minutes:\n  {document['link']}")
        print(f"or with the token in {config.token_file}; Ctrl-C ends it", flush=True)

    server.run(say)
