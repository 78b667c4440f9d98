"""What is said of a process that ended."""

from __future__ import annotations

from services.ray_processes import in_one_line

CREATION_FAILED = """The actor died because of an error raised in its creation task, \
ray::ShardHost.__init__() (pid=11242, ip=127.0.0.1, actor_id=7dc08d40, repr=<ShardHost>)
  File "services/shard_host.py", line 30, in __init__
    password = file.read_text()
               ^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: 'control/password'
"""


def test_of_a_traceback_the_last_line_is_said() -> None:
    said = in_one_line(RuntimeError(CREATION_FAILED))
    assert said == "FileNotFoundError: [Errno 2] No such file or directory: 'control/password'"


def test_a_sentence_is_said_as_it_is() -> None:
    assert in_one_line(RuntimeError("the simulator\n  is gone")) == "the simulator is gone"


def test_an_error_without_words_is_named() -> None:
    assert in_one_line(KeyError()) == "KeyError"
