"""Stand-ins for the tools of engines: programs on PATH that answer, and record what they got."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = """#!{python} -SE
import json, os, re, sys
folder = os.path.dirname(os.path.abspath(__file__))
name = os.path.basename(__file__)
given = sys.stdin.read() if not sys.stdin.isatty() else ""
with open(folder + "/calls.jsonl", "a") as file:
    file.write(json.dumps({{"tool": name, "words": sys.argv[1:], "stdin": given}}) + "\\n")
line = " ".join([name, *sys.argv[1:]])
with open(folder + "/answers.json") as file:
    answers = json.load(file)
for pattern, replies in reversed(answers):
    if re.search(pattern, line):
        counter = folder + "/.used-" + str(answers.index([pattern, replies]))
        used = os.path.getsize(counter) if os.path.exists(counter) else 0
        with open(counter, "a") as file:
            file.write(".")
        output, error, code = replies[min(used, len(replies) - 1)]
        sys.stdout.write(output)
        sys.stderr.write(error)
        sys.exit(code)
"""


@dataclass(frozen=True)
class Call:
    tool: str
    words: list[str]
    stdin: str

    @property
    def line(self) -> str:
        return " ".join([self.tool, *self.words])


class Tools:
    """A folder of stand-ins. Without an answer of its own, a call succeeds and prints nothing."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "answers.json").write_text("[]")
        for name in names:
            program = folder / name
            program.write_text(PROGRAM.format(python=sys.executable))
            program.chmod(0o755)

    def answer(self, pattern: str, *replies: str | tuple[str, str, int]) -> None:
        """To calls that match; one reply after the other, and the last from then on."""
        path = self.folder / "answers.json"
        answers: list[Any] = json.loads(path.read_text())
        whole = [[one, "", 0] if isinstance(one, str) else list(one) for one in replies]
        path.write_text(json.dumps([*answers, [pattern, whole]]))

    def calls(self, tool: str | None = None) -> list[Call]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        calls = [Call(**json.loads(line)) for line in lines]
        return [call for call in calls if tool in (None, call.tool)]


def secrets_of(home: Path, name: str) -> list[str]:
    """Everything that must not be seen: the token, and what is in the authority's key."""
    folder = home / "clusters" / name / "secrets"
    key = (folder / "authority.key").read_text().splitlines()
    return [(folder / "token").read_text().strip(), *key[1:-1]]


def assert_no_secret(texts: list[str], secrets: list[str]) -> None:
    assert secrets
    for text in texts:
        for secret in secrets:
            assert secret not in text
