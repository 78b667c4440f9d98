"""Shows a policy: as a GIF or an MP4 without a screen, or in a window."""

from __future__ import annotations

import ctypes.util
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repertory.config import EnvConfig, RunConfig
from repertory.envs import make_env
from repertory.errors import RepertoryError, UsageError
from repertory.policies.card import PolicyCard
from repertory.policy_memory import PolicyMemory
from repertory.protocols import Acting
from repertory.specs import EnvSpec
from services.ensemble import Ensemble

logger = logging.getLogger(__name__)

DEFAULT_FPS = 30
MAX_FRAMES = 3000


def record(card: PolicyCard | Ensemble, path: Path, *, episodes: int, seed: int) -> list[float]:
    """Writes a .gif or .mp4 of whole episodes; returns their returns."""
    if path.suffix not in (".gif", ".mp4"):
        raise UsageError(f"cannot write {path}: its name should end in .gif or .mp4")
    film = _film(card.build(), card.env_config, card.spec, episodes=episodes, seed=seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, film.frames, film.fps)
    except OSError as error:
        raise RepertoryError(f"cannot write {path}: {error.strerror or error}") from error
    return film.returns


def filmed(policy: Acting, config: RunConfig, spec: EnvSpec, seed: int) -> bytes | None:
    """One episode as an MP4, where the settings ask for it; an evaluation does not fail by it."""
    if not config.evaluation.video:
        return None
    try:
        film = _film(policy, config.env, spec, episodes=1, seed=seed)
        with tempfile.TemporaryDirectory(prefix="repertory-video-") as folder:
            path = Path(folder) / "film.mp4"
            _write(path, film.frames, film.fps)
            return path.read_bytes()
    except (RepertoryError, OSError) as error:
        logger.warning("no video: %s", error)
        return None


@dataclass(frozen=True, slots=True)
class Film:
    frames: list[np.ndarray]  # [H, W, 3] each
    fps: float
    returns: list[float]


def _film(policy: Acting, config: EnvConfig, spec: EnvSpec, *, episodes: int, seed: int) -> Film:
    prepare_rendering()
    frames: list[np.ndarray] = []

    def keep(env: Any) -> None:
        frame = env.render()
        if frame is not None and len(frames) < MAX_FRAMES:
            frames.append(np.asarray(frame, np.uint8))

    returns, fps = _play(policy, config, spec, "rgb_array", episodes, seed, keep)
    if not frames:
        raise RepertoryError(f"{spec.env_id} rendered no frame: it has no rgb_array mode")
    return Film(frames, fps, returns)


def show(card: PolicyCard | Ensemble, *, episodes: int, seed: int) -> list[float]:
    """Plays in a window of the environment's own."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("--window needs a screen and there is none: use --gif FILE or --mp4 FILE")
    policy, config, spec = card.build(), card.env_config, card.spec
    return _play(policy, config, spec, "human", episodes, seed, lambda env: None)[0]


def _play(
    policy: Acting,
    config: EnvConfig,
    spec: EnvSpec,
    render_mode: str,
    episodes: int,
    seed: int,
    after: Callable[[Any], None],
) -> tuple[list[float], float]:
    memory = PolicyMemory(policy)
    try:
        env = make_env(config, seed=seed, role="play", render_mode=render_mode)
    except RepertoryError:
        raise
    except Exception as error:
        raise _cannot_render(spec, error) from error
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
                action = spec.to_env_action(acted.action)[0]
                observation, reward, terminated, truncated, _ = env.step(action)
                episode_return += float(reward)
                ended = terminated or truncated
                after(env)
            returns.append(episode_return)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise _cannot_render(spec, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("mujoco", "gymnasium", "OpenGL", "pygame"):
            raise _cannot_render(spec, error) from error
        raise
    finally:
        env.close()
    return returns, fps


def _write(path: Path, frames: list[np.ndarray], fps: float) -> None:
    import imageio.v3 as iio  # only where a video is made

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


def _cannot_render(spec: EnvSpec, error: BaseException) -> RepertoryError:
    missing = missing_gl_library()
    hint = f"; the library {missing} is missing" if missing else ""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return RepertoryError(f"cannot render {spec.env_id}: {reason}{hint}")
