"""Commands about what there is to train with: algorithms, strategies, an environment, this machine.

Imports wait inside, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

from tyro.conf import Positional, arg

from repertory.errors import RepertoryError


def algorithms() -> None:
    """List the algorithms: what data they learn from, where they fit, what can be switched."""
    from rich.console import Console

    from services.algorithm_table import algorithm_table

    Console().print(algorithm_table())


def strategies() -> None:
    """List the strategies by which the director of a portfolio chooses who acts."""
    from rich.console import Console
    from rich.table import Table

    from repertory.parts import SHORT_NAMES, lookup

    table = Table("name", "what it does", "settings")
    for name in SHORT_NAMES["strategy"]:
        strategy = lookup("strategy", name)
        fields = strategy.Config.model_fields
        settings = [f"{key} = {field.default}" for key, field in fields.items() if key != "name"]
        summary = (sys.modules[strategy.__module__].__doc__ or "").partition("\n")[0]
        table.add_row(name, summary, "\n".join(settings))
    Console().print(table)


def describe(env: Annotated[Positional[str], arg(metavar="ENV")], /) -> None:
    """Describe an environment: spaces, limits, and which algorithms fit.

    Args:
        env: A Gymnasium id, module:EnvId-v0, or package.module:make_env.
    """
    from rich.console import Console

    from services.describe import description

    Console().print(description(env))


def doctor() -> None:
    """Look over this machine and say what is missing."""
    from rich.console import Console
    from rich.table import Table

    from services.doctor import examine

    findings = examine()
    table = Table("", "what", "found")
    for finding in findings:
        mark = "[green]ok" if finding.ok else "[red]no" if finding.required else "[yellow]no"
        table.add_row(mark, finding.topic, finding.detail)
    Console().print(table)
    if any(finding.required and not finding.ok for finding in findings):
        raise RepertoryError("something that training needs is missing: see the table above")
