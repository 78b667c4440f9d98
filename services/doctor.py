"""Looks over this machine: what is installed, what works, what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from repertory.config import EnvConfig


@dataclass(frozen=True, slots=True)
class Finding:
    topic: str
    ok: bool
    required: bool  # whether training needs it
    detail: str


EXTRAS = {
    "ale_py": "atari",
    "Box2D": "box2d",
    "gymnasium_robotics": "robotics",
    "onnx": "onnx",
    "wandb": "wandb",
}


def examine() -> list[Finding]:
    checks: list[tuple[str, bool, Callable[[], str]]] = [
        ("python", True, _python),
        ("packages", True, _packages),
        ("processors and memory", True, _hardware),
        ("torch device", True, _device),
        ("environment: CartPole-v1", True, lambda: _environment("CartPole-v1")),
        ("environment: HalfCheetah-v5", False, lambda: _environment("HalfCheetah-v5")),
        ("rendering without a screen: CartPole-v1", False, lambda: _render("CartPole-v1")),
        ("rendering without a screen: HalfCheetah-v5", False, lambda: _render("HalfCheetah-v5")),
        ("MP4 (ffmpeg)", False, _ffmpeg),
        ("C++ compiler, for faster learners", False, _compiler),
        ("writing to this folder", True, _writable),
        ("extras", False, _extras),
    ]
    findings = []
    for topic, required, check in checks:
        try:
            findings.append(Finding(topic, True, required, check()))
        except Exception as error:  # whatever is wrong is the finding
            detail = " ".join(str(error).split())[:300] or type(error).__name__
            findings.append(Finding(topic, False, required, detail))
    return findings


def _python() -> str:
    return f"{platform.python_version()} on {platform.platform(terse=True)}"


def _packages() -> str:
    names = ("torch", "gymnasium", "mujoco", "numpy", "pydantic")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _hardware() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    free = shutil.disk_usage(".").free / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, {free:.0f} GiB free on disk"


def _device() -> str:
    from services.fit import choose_device

    return f"auto is {choose_device('auto')}"


def _environment(env_id: str) -> str:
    from repertory.envs import probe

    spec = probe(EnvConfig(id=env_id))
    return f"observations {spec.observation_shape}, {spec.action_kind} actions"


def _render(env_id: str) -> str:
    from repertory.envs import make_env
    from services.video import missing_gl_library, prepare_rendering

    prepare_rendering()
    env = make_env(EnvConfig(id=env_id), render_mode="rgb_array")
    try:
        env.reset()
        frame = env.render()
    except Exception as error:
        missing = missing_gl_library()
        raise RuntimeError(f"{error}; {missing} is missing" if missing else str(error)) from error
    finally:
        env.close()
    height, width = frame.shape[:2]  # type: ignore[union-attr]
    return f"{width}x{height}, MUJOCO_GL={os.environ.get('MUJOCO_GL', 'not set')}"


def _ffmpeg() -> str:
    import imageio_ffmpeg

    return f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}"


def _compiler() -> str:
    from learner.ahead_of_time import find_compiler

    return find_compiler()


def _writable() -> str:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        return str(Path(folder).parent.resolve())


def _extras() -> str:
    import importlib.util

    missing = sorted(
        extra for module, extra in EXTRAS.items() if importlib.util.find_spec(module) is None
    )
    return f"not installed: {', '.join(missing)}" if missing else "all installed"
