"""Shows a policy: as a GIF or an MP4 without a screen, or in a window."""

from __future__ import annotations

import ctypes.util
import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
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
    return _film(card.build(), card.env_config, card.spec, path, episodes=episodes, seed=seed)


def filmed(policy: Acting, config: RunConfig, spec: EnvSpec, seed: int) -> bytes | None:
    """One episode as an MP4, where the settings ask for it; an evaluation does not fail by it."""
    if not config.evaluation.video:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="repertory-video-") as folder:
            path = Path(folder) / "film.mp4"
            _film(policy, config.env, spec, path, episodes=1, seed=seed)
            return path.read_bytes()
    except Exception as error:  # whatever an environment does when it draws
        logger.warning("no video: %s: %s", type(error).__name__, error)
        return None


def _film(
    policy: Acting, config: EnvConfig, spec: EnvSpec, path: Path, *, episodes: int, seed: int
) -> list[float]:
    if path.suffix not in FILMS:
        raise UsageError(f"cannot write {path}: its name should end in .gif or .mp4")
    prepare_rendering()
    film: Film = FILMS[path.suffix](path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        returns = _play(policy, config, spec, "rgb_array", episodes, seed, film.take)
        film.close()
    except OSError as error:
        raise RepertoryError(f"cannot write {path}: {error.strerror or error}") from error
    if not film.frames:
        raise RepertoryError(f"{spec.env_id} rendered no frame: it has no rgb_array mode")
    return returns


class Film(ABC):
    """What an environment draws, as a file; `MAX_FRAMES` at most."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.frames = 0

    def take(self, env: Any) -> None:
        frame = env.render()
        if frame is not None and self.frames < MAX_FRAMES:
            fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
            self._add(np.asarray(frame, np.uint8), fps)
            self.frames += 1

    @abstractmethod
    def _add(self, frame: np.ndarray, fps: float) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Gif(Film):
    """Written whole: its colours are chosen for all frames together."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kept: list[np.ndarray] = []
        self._milliseconds = 0.0

    def _add(self, frame: np.ndarray, fps: float) -> None:
        # GIF players round delays below 20 ms: every other frame of a fast environment is shown.
        stride = max(1, round(fps / 30))
        self._milliseconds = 1000 * stride / fps
        if self.frames % stride == 0:
            self._kept.append(frame)

    def close(self) -> None:
        import imageio.v3 as iio  # only where one is made

        if self._kept:
            iio.imwrite(self._path, self._kept, duration=self._milliseconds, loop=0)


class Mp4(Film):
    """Frames go to the encoder one by one: an episode may have many, and each is large."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._encoder: Any = None

    def _add(self, frame: np.ndarray, fps: float) -> None:
        # H.264 wants even sides.
        height, width = (side - side % 2 for side in frame.shape[:2])
        if self._encoder is None:
            import imageio_ffmpeg

            self._encoder = imageio_ffmpeg.write_frames(
                str(self._path), (width, height), fps=fps, codec="libx264", macro_block_size=2
            )
            self._encoder.send(None)
        self._encoder.send(np.ascontiguousarray(frame[:height, :width]))

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()


FILMS: dict[str, type[Film]] = {".gif": Gif, ".mp4": Mp4}


def show(card: PolicyCard | Ensemble, *, episodes: int, seed: int) -> list[float]:
    """Plays in a window of the environment's own."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError("--window needs a screen and there is none: use --gif FILE or --mp4 FILE")
    policy, config, spec = card.build(), card.env_config, card.spec
    return _play(policy, config, spec, "human", episodes, seed, lambda env: None)


def _play(
    policy: Acting,
    config: EnvConfig,
    spec: EnvSpec,
    render_mode: str,
    episodes: int,
    seed: int,
    after: Callable[[Any], None],
) -> list[float]:
    memory = PolicyMemory(policy)
    try:
        env = make_env(config, seed=seed, role="play", render_mode=render_mode)
    except RepertoryError:
        raise
    except Exception as error:
        raise _cannot_render(spec, error) from error
    returns = []
    try:
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
    return returns


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
