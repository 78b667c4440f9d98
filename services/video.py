"""Shows a policy: as a GIF or an MP4 without a screen, or in a window."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np

from repertory.envs import make_env
from repertory.errors import RepertoryError, UsageError
from repertory.policies.card import PolicyCard
from repertory.policy_memory import PolicyMemory
from services.ensemble import Ensemble

DEFAULT_FPS = 30


def record(
    card: PolicyCard | Ensemble, path: Path, *, episodes: int, seed: int, max_frames: int = 3000
) -> list[float]:
    """Writes a .gif or .mp4 of whole episodes; returns their returns."""
    if path.suffix not in (".gif", ".mp4"):
        raise UsageError(f"cannot write {path}: its name should end in .gif or .mp4")
    prepare_rendering()
    frames: list[np.ndarray] = []

    def keep(env: Any) -> None:
        frame = env.render()
        if frame is not None and len(frames) < max_frames:
            frames.append(np.asarray(frame, np.uint8))

    returns, fps = _play(card, "rgb_array", episodes, seed, keep)
    if not frames:
        raise RepertoryError(f"{card.spec.env_id} rendered no frame: it has no rgb_array mode")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, frames, fps)
    except OSError as error:
        raise RepertoryError(f"cannot write {path}: {error.strerror or error}") from error
    return returns


def show(card: PolicyCard | Ensemble, *, episodes: int, seed: int) -> list[float]:
    """Plays in a window of the environment's own."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("--window needs a screen and there is none: use --gif FILE or --mp4 FILE")
    return _play(card, "human", episodes, seed, lambda env: None)[0]


def _play(
    card: PolicyCard | Ensemble,
    render_mode: str,
    episodes: int,
    seed: int,
    after: Callable[[Any], None],
) -> tuple[list[float], float]:
    memory = PolicyMemory(card.build())
    try:
        env = make_env(card.env_config, seed=seed, role="play", render_mode=render_mode)
    except RepertoryError:
        raise
    except Exception as error:
        raise _cannot_render(card, error) from error
    returns = []
    try:
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        for _ in range(episodes):
            observation, _ = env.reset()
            memory.begin()
            after(env)
            episode_return, ended = 0.0, False
            while not ended:
                acted = memory.act(observation[None], None)
                action = card.spec.to_env_action(acted.action)[0]
                observation, reward, terminated, truncated, _ = env.step(action)
                episode_return += float(reward)
                ended = terminated or truncated
                after(env)
            returns.append(episode_return)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise _cannot_render(card, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("mujoco", "gymnasium", "OpenGL", "pygame"):
            raise _cannot_render(card, error) from error
        raise
    finally:
        env.close()
    return returns, fps


def _write(path: Path, frames: list[np.ndarray], fps: float) -> None:
    if path.suffix == ".mp4":
        # H.264 wants even sides; a macro block of 2 avoids rescaling the picture further.
        height, width = (side - side % 2 for side in frames[0].shape[:2])
        even = [frame[:height, :width] for frame in frames]
        iio.imwrite(path, even, fps=fps, codec="libx264", macro_block_size=2, plugin="FFMPEG")
        return
    # GIF players round delays below 20 ms: show every other frame of a fast environment.
    stride = max(1, round(fps / 30))
    iio.imwrite(path, frames[::stride], duration=1000 * stride / fps, loop=0)


def prepare_rendering() -> None:
    """Without a screen SDL gets its dummy driver, MuJoCo EGL or OSMesa; a user's choice stands."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ.setdefault("MUJOCO_GL", backend)
            return


def missing_gl_library() -> str | None:
    """What to install where MuJoCo cannot draw without a screen."""
    if ctypes.util.find_library("EGL") or ctypes.util.find_library("OSMesa"):
        return None
    return "libEGL (Debian: apt-get install libegl1) or OSMesa (Debian: libosmesa6)"


def _cannot_render(card: PolicyCard | Ensemble, error: BaseException) -> RepertoryError:
    missing = missing_gl_library()
    hint = f"; the library {missing} is missing" if missing else ""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return RepertoryError(f"cannot render {card.spec.env_id}: {reason}{hint}")
