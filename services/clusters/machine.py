"""One machine of a cluster as whoever launches it sees it."""

from __future__ import annotations

from dataclasses import dataclass

from services.clusters.inventory import Shape
from services.clusters.node import Node
from services.clusters.shell import Shell


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    shell: Shell
    shape: Shape
    node: Node  # as its folder will have it
    folder: str  # there; may begin with ~/
    environment: str  # of Python, there
    ports: list[int]  # on which it will listen, as far as that is known

    @property
    def python(self) -> str:
        return f"{self.environment}/bin/python"
