"""How arguments that several commands share look in `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

# Of optional values: a word for the value, no "default: None".
Whole = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Text = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Environment = Annotated[Positional[str | None], arg(metavar="ENV", help_behavior_hint="")]
Mode = Annotated[
    Literal["strategy", "vote", "average"] | None,
    arg(metavar="strategy|vote|average", help_behavior_hint=""),
]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]

Run = Annotated[Positional[Path], arg(metavar="RUN")]
Settings = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")]
Json = Annotated[bool, arg(name="json")]
