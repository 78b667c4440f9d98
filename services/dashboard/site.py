"""What every page of one dashboard shares."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from services.dashboard.library import RunLibrary
from services.dashboard.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Site:
    library: RunLibrary
    sessions: Sessions
    secure: bool = False  # reached over TLS
    closing: threading.Event = field(default_factory=threading.Event)  # streams end
