"""What a process is told through the control plane, heard by a thread of its own.

For processes that Ray cannot call while they work. An order is for one life of one process, so it
does not matter that all that are kept are read from the first: a process that was started again
hears nothing that was meant for the one before. While the control server is away nothing is heard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from repertory.closing import Closing
from repertory.control import Control, ControlUnavailable

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class Orders(Closing):
    """Listens from when it is made. `obey` has what to call for each order, by its name."""

    def __init__(
        self,
        control: Control,
        name: str,
        incarnation: int,
        obey: Mapping[str, Callable[..., None]],
    ) -> None:
        self._control = control
        self._name = name
        self._incarnation = incarnation
        self._obey = obey
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="orders", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Without waiting for the thread, which may be in the middle of waiting for orders."""
        self._closed.set()

    def _listen(self) -> None:
        heard = "0"
        while not self._closed.is_set():
            try:
                entries = self._control.await_orders(heard)
            except ControlUnavailable:
                self._closed.wait(AGAIN_SECONDS)
                continue
            except Exception:
                if self._closed.is_set():  # and the connection with it, while it was being read
                    return
                raise
            for entry in entries:
                heard = entry.id
                self._take(entry.fields)

    def _take(self, order: Mapping[str, Any]) -> None:
        if (order["to"], order["incarnation"]) == (self._name, self._incarnation):
            logger.info("told to %s", order["name"])
            self._obey[order["name"]](*order["arguments"])
