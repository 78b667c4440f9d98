"""The traps that others fell into, put into a copy of the code one by one: the tests must notice.

    python -m tests.broken_variants              # all of them, some minutes
    python -m tests.broken_variants natural_gradient q_learning

Each variant changes a line or two of one file. A variant that no test notices, or whose line is no
longer there, makes the exit code 1.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("actors", "buffer_server", "learner", "repertory", "services", "tests", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Variant:
    what: str  # begins with the algorithm
    file: str
    good: str
    bad: str
    test: str
    words: str = ""  # of the tests to run, as for pytest -k

    @property
    def algorithm(self) -> str:
        return self.what.partition(":")[0]


def _part(name: str, file: str, test: str, *variants: tuple[str, str, str, str]) -> list[Variant]:
    """Variants of a file that many algorithms rest upon."""
    return [Variant(f"{name}: {what}", file, *change, test, words)
            for what, *change, words in variants]  # fmt: skip


def _algorithm(name: str, *variants: tuple[str, str, str, str]) -> list[Variant]:
    """Variants of one algorithm's file, for the tests of the same name."""
    return [
        Variant(
            f"{name}: {what}",
            f"learner/algorithms/{name}.py",
            good,
            bad,
            f"tests/unit/test_{name}.py",
            words,
        )
        for what, good, bad, words in variants
    ]


VARIANTS = [
    *_algorithm(
        "ddpg",
        ("target action from s", "state.target_policy(batch.next_observation)",
         "state.target_policy(batch.observation)", "target or three_updates"),
        ("online critic in the target", "next_q = state.target_critic(",
         "next_q = state.critic(", "target_stays or three_updates"),
        ("target critic never moved",
         "polyak_update(state.target_critic, state.critic, config.tau)", "pass", "every_update"),
    ),
    *_algorithm(
        "sac_discrete",
        ("temperature not weighted by pi",
         "(log_alpha * expectation(log_pi, log_pi + target_entropy)).mean()",
         "(log_alpha * (log_pi + target_entropy)).mean()", "temperature or weighted or both_sides"),
        ("alpha used as log alpha", "alpha = state.log_alpha.detach().exp()",
         "alpha = state.log_alpha.detach()", "positive_and or three_updates"),
        ("sign of the temperature", "return -(log_alpha *", "return (log_alpha *", "temperature"),
        ("larger instead of smaller critic",
         "state.target_critic(batch.next_observation).amin(0)",
         "state.target_critic(batch.next_observation).amax(0)", "by_hand"),
        ("entropy outside of the sum over pi", "expectation(log_pi, next_q - alpha * log_pi)",
         "(expectation(log_pi, next_q) - alpha * log_pi.sum(-1))", "by_hand"),
    ),
    *_algorithm(
        "q_learning",
        ("duplicates overwrite each other",
         "    q[entries] += step * (mean_target - q[entries])",
         "    q[entry] += lr * weights * (target - q[entry])", "duplicates or five_updates"),
        ("duplicates add up", "    q[entries] += step * (mean_target - q[entries])",
         "    q.index_add_(0, entry, lr * weights * (target - q[entry]))", "duplicates"),
        ("s in the target", "policy(batch.next_observation).amax(-1)",
         "policy(batch.observation).amax(-1)", "five_updates"),
        ("an infinite bound is taken", "if abs(end) >= UNBOUNDED:", "if False:", "without_a_bound"),
    ),
    *_algorithm(
        "natural_gradient",
        ("line search goes on where the last one ended",
         "            fraction = config.backtrack**tried\n",
         "            self.kept = getattr(self, 'kept', 1.0) * (config.backtrack if tried else 1)\n"
         "            fraction = self.kept\n", "backtrack or reference"),
        ("KL not looked at", "(kl <= config.max_kl and improvement > 0)", "(improvement > 0)",
         "too_far"),
        ("improvement not looked at", "(kl <= config.max_kl and improvement > 0)",
         "(kl <= config.max_kl)", "finds_nothing or reference"),
        ("parameters not restored", "            assign(parameters, old_parameters)\n",
         "            pass\n", "restores"),
        ("damping left out", "flat(averaged(product)) + self._damping * vector",
         "flat(averaged(product))", "hessian or reference"),
        ("step without its root", "(2 * max_kl / curvature).sqrt() * direction",
         "(2 * max_kl / curvature) * direction", "as_long_as"),
    ),
    *_algorithm(
        "vpg",
        ("policy not moved",
         "        metrics |= policy_step(state.policy, state.optimizer, experience, "
         "config.max_grad_norm)\n", "", "reference"),
    ),
    Variant("vpg: sign of the policy's loss", "learner/policy_gradient.py",
            "return -(log_prob * experience.advantage).mean()",
            "return (log_prob * experience.advantage).mean()",
            "tests/unit/test_vpg.py", "reference"),
    Variant("dqn: the target judges and chooses", "learner/dqn_family.py",
            "        chooser = state.policy(observation, noise_of(state, config))\n",
            "        chooser = state.target(observation, noise_of(state, config))\n",
            "tests/unit/test_dqn_family.py", "target or double"),
    *_algorithm(
        "actor_critic",
        ("target held for all gradient steps",
         "            experience = bootstrapped(state.value, transitions)\n            for _",
         "            experience = locals().get('experience') or bootstrapped(state.value, "
         "transitions)\n            for _", "counted or reference"),
        ("s in the target", "transitions.discount * value(transitions.next_observation)",
         "transitions.discount * value(transitions.observation)", "bootstraps or reference"),
        ("termination ignored", "transitions.reward + transitions.discount * value(",
         "transitions.reward + transitions.discount.max() * value(", "bootstraps or reference"),
    ),
    *_algorithm(
        "option_critic",
        ("online features in the target", "heads = state.target(batch.next_observation)",
         "heads = state.policy(batch.next_observation)", "online_network"),
        ("option always ends on arrival",
         "(1 - ending) * of_option(heads.q, index) + ending * heads.q.amax(-1)",
         "heads.q.amax(-1)", "target_by_hand"),
        ("sign of the termination's advantage",
         "of_option(q, index) - q.amax(-1) + config.termination_margin",
         "q.amax(-1) - of_option(q, index) - config.termination_margin", "ends_sooner"),
        ("gradient through the advantage", "(target - q).detach(), weights, config",
         "(target - q), weights, config", "reference"),
        ("others' steps count", "weights = batch.weights * (option != NO_OPTION)",
         "weights = batch.weights", "without_an_option"),
    ),
    *_algorithm(
        "h_dqn",
        ("the controller gets the environment's reward",
         "        reward=reached.astype(batch.reward.dtype),\n", "", "does_not_see"),
        ("something follows a reached goal",
         "discount=np.where(reached, 0, batch.discount).astype(batch.discount.dtype)",
         "discount=batch.discount", "nothing_follows"),
        ("meta-controller learns from steps", "self._update_meta(state, sample.stretches)",
         "self._update_meta(state, sample.batch)", "reference"),
    ),
    *_algorithm(
        "c51",
        ("divergence the other way round",
         "(torch.xlogy(target, target) - target * logits.log_softmax(-1)).sum(-1)",
         "(logits.softmax(-1) * (logits.log_softmax(-1) - (target + 1e-8).log())).sum(-1)",
         "divergence"),
    ),
    *_algorithm(
        "qr_dqn",
        ("sum and mean exchanged", "(slopes * huber / kappa).mean(2).sum(1)",
         "(slopes * huber / kappa).sum(2).mean(1)", "reference or by_hand"),
        ("sign of the difference", "target[:, None, :] - quantiles[:, :, None]",
         "quantiles[:, :, None] - target[:, None, :]", "reference or by_hand"),
    ),
    *_part(
        "her", "actors/hindsight.py", "tests/unit/test_hindsight.py",
        ("achieved where the step began", 'achieved = columns["next_observation"]',
         'achieved = columns["observation"]', "by_hand"),
        ("reward of the old goal", "self._judge.rewards(achieved[own], goal)",
         'relabelled["reward"]', "by_hand"),
        ("goal left in the next observation", 'for name in ("observation", "next_observation"):',
         'for name in ("observation",):', "by_hand"),
        ("goals of the episode before", "        self._filled[over] = 0\n", "", "same_episode"),
    ),
    *_part(
        "her", "actors/goal_choices.py", "tests/unit/test_goal_choices.py",
        ("a goal of the past", "rng.integers(own, length,", "rng.integers(0 * own, length,", ""),
    ),
    *_part(
        "atari", "repertory/atari.py", "tests/unit/test_atari.py",
        ("last frame alone", "np.max(frames[-2:], axis=0)", "frames[-1]", "brighter"),
        ("game goes on after its end",
         "            if terminated or truncated:\n                break", "            pass",
         "end_within"),
        ("the same start every time", "int(self.np_random.integers(1, most + 1))", "most", "no_op"),
        ("lives of the last game", '        self._lives = int(info["lives"])\n        return self',
         "        return self", "lives_of_the_last"),
    ),
    *_part(
        "atari", "actors/rollout.py", "tests/unit/test_atari.py",
        ("life loss never learned", "if step.eventful and step.life_lost.any():", "if False:",
         "lost_life"),
        ("returns of clipped rewards", "        self._episodes.add(step)\n",
         "        self._episodes.add(learned)\n", "whole_game"),
    ),
    *_part(
        "autoreset", "actors/stepper.py", "tests/unit/test_stepper.py",
        ("the reset is a transition", "valid = ~(self._resetting | broken)", "valid = ~broken", ""),
        ("the reset's observation is the last",
         'next_observation[copy] = info["final_obs"][copy]', "pass", ""),
    ),
    *_part(
        "boundaries", "actors/assemblers.py", "tests/unit/test_assemblers.py",
        ("windows over an episode's end",
         "self._pending = np.where(boundary & valid, 0, pending)", "self._pending = pending", ""),
    ),
    *_part(
        "boundaries", "actors/rollout.py", "tests/unit/test_rollout.py",
        ("a time limit taken for an end",
         "gathered.add(stream.table, stream.add(columns, turns, learned))",
         "gathered.add(stream.table, stream.add(columns, turns, "
         "replace(learned, terminated=learned.boundary)))", ""),
    ),
]  # fmt: skip


def run(variant: Variant) -> str:
    """In the copy that is the working folder: `noticed`, or what is wrong."""
    file = Path(variant.file)
    text = file.read_text()
    if text.count(variant.good) < 1:
        return "LINE NOT FOUND"
    if _tested(variant) != 0:  # or else anything would be noticed
        return "FAILS UNCHANGED"
    file.write_text(text.replace(variant.good, variant.bad, 1))
    try:
        return {0: "NOT NOTICED", 1: "noticed"}.get(_tested(variant), "TESTS DID NOT RUN")
    finally:
        file.write_text(text)


def _tested(variant: Variant) -> int:
    """The exit code of pytest, in a child that has imported torch already but nothing of ours."""
    process_id = os.fork()
    if process_id == 0:
        import pytest

        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        arguments = ["-qq", "-x", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = pytest.main([*arguments, variant.test, "-k", variant.words])
        os._exit(int(code))
    _, status = os.waitpid(process_id, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> int:
    import torch
    from rich.console import Console

    torch.set_num_threads(1)
    console = Console()
    wanted = set(sys.argv[1:])
    chosen = [one for one in VARIANTS if not wanted or one.algorithm in wanted]
    if not chosen:
        console.print(f"nothing of {', '.join(sorted(wanted))}")
        return 2
    with tempfile.TemporaryDirectory(prefix="broken-") as folder:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(folder) / name)
            else:
                shutil.copy(source, folder)
        os.chdir(folder)
        sys.dont_write_bytecode = True  # a variant may be as long, and as old, as what it replaces
        sys.path[0] = folder
        os.environ["PYTHONPATH"] = folder
        bad = 0
        for variant in chosen:
            outcome = run(variant)
            bad += outcome != "noticed"
            console.print(f"{outcome:18} {variant.what}")
        os.chdir(ROOT)
    console.print(f"{len(chosen) - bad} of {len(chosen)} noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
