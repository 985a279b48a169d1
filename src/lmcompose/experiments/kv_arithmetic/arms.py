"""The arms of the ablations, each a small entry that says what is different from the composition as in the paper.

One more entry in `ARMS` is one more row of the ladder; one more value of a `Sweep` is one more point of a curve.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcompose.errors import ConfigurationError, nearest

DEFAULT = "composition"
"""The arm that all others are compared with."""

Connections = Callable[[int, int], list[tuple[int, int]]]
"""(layers of m_A, layers of m_B) -> connections."""


@dataclass(frozen=True)
class Arm:
    """One thing that is trained and tested, by what is different from the default.

    Args:
        title: its name in tables.
        augmenting: which m_A is composed: "trained", "random" (the same shape, untrained) or "vanilla" (trained in the
            same way on a table whose values are shuffled).
        options: of `compose`.
        connections: worked out from the members' depths, in place of the profile's.
        held_in: the fraction of keys that the data show, in place of the task's 20 %.
        data: fields of `CompositionProfile` that are replaced.
        tuned: no composition: m_B itself is tuned on the same data, by "lora" with as many parameters as the bridge,
            or "whole".
        every_key: the data show every key, those that are tested too: a skyline and no fair opponent.
    """

    title: str
    augmenting: str = "trained"
    options: Mapping[str, Any] = field(default_factory=dict)
    connections: Connections | None = None
    held_in: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    tuned: str | None = None
    every_key: bool = False

    def settings(self, layers: tuple[int, int]) -> dict[str, Any]:
        """All that decides what is trained, for stamps and results, with members of so many `layers`; no title."""
        options = dict(self.options)
        if self.connections is not None:
            options["connections"] = [list(pair) for pair in self.connections(*layers)]
        return {
            "augmenting": self.augmenting,
            "options": options,
            "held_in": self.held_in,
            "data": dict(self.data),
            "tuned": self.tuned,
            "every_key": self.every_key,
        }


@dataclass(frozen=True)
class Sweep:
    """One setting at several values, with the default's among them.

    Args:
        title: what the axis of its curve is called.
        name: of the arms, before the value.
        arm: value -> arm.
        values: all but the default's.
        default: the default's value, in every profile.
    """

    title: str
    arm: Callable[[Any], Arm]
    values: Sequence[Any]
    default: Any


ARMS = {
    DEFAULT: Arm("composition"),
    "random": Arm("random m_A", augmenting="random"),
    "vanilla": Arm("vanilla m_A", augmenting="vanilla"),
    "encoder": Arm("m_A as an encoder", options={"reads": "prompt"}),
    "lora": Arm("LoRA on m_B", tuned="lora"),
    "finetuned": Arm("m_B fine-tuned", tuned="whole"),
    "finetuned_all": Arm("the same, all keys", tuned="whole", every_key=True),
    "arithmetic_only": Arm("data: KV-MATH only", data={"substitution": 0.0}),
    "substitution_only": Arm("data: KV-SUBS only", data={"substitution": 1.0}),
}
"""The ladder, the default first."""


def _first_layers(n: int | None) -> Connections:
    """From m_A's last layer into the embeddings of m_B and the layers that follow, `n` of them or all."""

    def connections(augmenting: int, anchor: int) -> list[tuple[int, int]]:
        return [(augmenting, layer) for layer in range(anchor + 1 if n is None else n)]

    return connections


SWEEPS = {
    "fraction": Sweep(
        "keys held in, %", lambda percent: Arm(f"{percent} % held in", held_in=percent / 100), (1, 2, 5, 10, 50), 20
    ),
    "connections": Sweep(
        "connections n",
        lambda n: Arm(f"n = {n}", connections=_first_layers(None if n == "all" else n)),
        (2, "all"),
        1,
    ),
    "heads": Sweep("heads N_H", lambda heads: Arm(f"N_H = {heads}", options={"num_heads": heads}), (1, 2, 4, 16), 8),
}
"""Each curve of the figure. The default's own point is the arm `DEFAULT`."""

MOST_HELD_IN = 0.5
"""Every arm is tested on keys that no arm but the skyline has seen: those outside the largest fraction held in."""


def chosen(arms: Sequence[str] | None = None, sweeps: Sequence[str] | None = None) -> dict[str, Arm]:
    """The default, the named arms and the arms of the named sweeps; by default all.

    Raises:
        ConfigurationError: there is no such arm or sweep.
    """
    for names, known, what in ((arms, ARMS, "arm"), (sweeps, SWEEPS, "sweep")):
        for name in names or ():
            if name not in known:
                raise ConfigurationError(f"There is no {what} '{name}'; there are {list(known)}.{nearest(name, known)}")
    found = {name: arm for name, arm in ARMS.items() if arms is None or name in (DEFAULT, *arms)}
    for name, sweep in SWEEPS.items():
        if sweeps is None or name in sweeps:
            found |= {point(name, value): sweep.arm(value) for value in sweep.values}
    return found


def point(sweep: str, value: Any) -> str:
    """The name of the arm at one value of a sweep."""
    return DEFAULT if value == SWEEPS[sweep].default else f"{sweep}_{value}"


def curves(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The sweeps whose points are all among the arms `names`: `title`, and `points`, [value, arm], the least first."""
    found = {}
    for name, sweep in SWEEPS.items():
        if all(point(name, value) in names for value in sweep.values):
            values = sorted([*sweep.values, sweep.default], key=lambda value: (isinstance(value, str), value))
            found[name] = {"title": sweep.title, "points": [[value, point(name, value)] for value in values]}
    return found
