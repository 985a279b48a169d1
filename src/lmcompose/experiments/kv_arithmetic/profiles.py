"""The sizes at which the experiment is run, with every setting of every stage."""

from dataclasses import dataclass

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.experiments.kv_arithmetic.composition import CompositionProfile
from lmcompose.experiments.kv_arithmetic.members import MemberProfile
from lmcompose.experiments.kv_arithmetic.natural import NaturalTask
from lmcompose.experiments.kv_arithmetic.task import Task


@dataclass(frozen=True)
class Profile:
    """One size of the experiment.

    Args:
        keys, operands: of the task.
        augmenting, anchor: how the members are trained; the anchor in one stage or several.
        tested: expressions per model and task in the table.
        arms: which compositions are trained: "composition" (as in the paper), "random_augmenting" (m_A of the same
            shape without training), "composition_mlp" (a two-layer f_proj, beyond the paper).
    """

    keys: int
    operands: int
    augmenting: MemberProfile
    anchor: tuple[MemberProfile, ...]
    composition: CompositionProfile
    tested: int
    arms: tuple[str, ...] = ("composition",)

    def task(self, seed: int) -> Task:
        """The task of one seed."""
        return Task(self.keys, self.operands, seed)


@dataclass(frozen=True)
class NaturalProfile(Profile):
    """One size of the experiment in words."""

    form: str = "natural"

    def task(self, seed: int) -> Task:
        """The task of one seed."""
        return NaturalTask(self.keys, self.operands, seed)


PROFILES = {
    "demo": Profile(
        keys=2_000,
        operands=2,
        augmenting=MemberProfile(
            width=64, layers=2, heads=4, mlp=32, steps=2_000, rows=128, learning_rate=3e-3, weight_decay=1.0,
            single=0.6, mix=(1, 1),
        ),
        anchor=(
            MemberProfile(
                width=64, layers=2, heads=4, mlp=256, steps=1_200, rows=128, learning_rate=2e-3,
                muon_learning_rate=0.01, weight_decay=0.01, mix=(1, 2), sparse=0.7, unknown=0.5,
            ),
            MemberProfile(
                width=64, layers=2, heads=4, mlp=256, steps=900, rows=128, learning_rate=1.5e-3,
                muon_learning_rate=0.008, weight_decay=0.01, mix=(1, 2), sparse=0.5, unknown=0.3, noise=0.1,
                mixing=0.15, echo=0.3, decay=0.6,
            ),
        ),
        composition=CompositionProfile(
            connections=((2, 0),), num_heads=8, initializer_range=0.12, steps=1_000, rows=192, learning_rate=0.02,
            mix=(0, 1),
        ),
        tested=1_000,
    ),
    "paper": Profile(
        keys=25_000,
        operands=3,
        augmenting=MemberProfile(
            width=128, layers=2, heads=8, mlp=32, steps=2_200, rows=256, learning_rate=3e-3, weight_decay=1.0,
            single=0.5, mix=(1, 1, 1),
        ),
        anchor=(
            MemberProfile(
                width=128, layers=3, heads=8, mlp=512, steps=3_000, rows=128, learning_rate=2e-3,
                muon_learning_rate=0.01, weight_decay=0.01, single=0.05, mix=(1, 2, 6), sparse=0.6, unknown=0.5,
            ),
            MemberProfile(
                width=128, layers=3, heads=8, mlp=512, steps=1_800, rows=128, learning_rate=1.5e-3,
                muon_learning_rate=0.008, weight_decay=0.01, mix=(1, 1, 4), sparse=0.5, unknown=0.3, noise=0.1,
                mixing=0.15, echo=0.3, decay=0.6,
            ),
        ),
        composition=CompositionProfile(
            connections=((2, 0),), num_heads=8, initializer_range=0.05, steps=1_200, rows=256, learning_rate=0.02,
            mix=(0, 1, 4),
        ),
        tested=2_000,
        arms=("composition", "random_augmenting"),
    ),
}  # fmt: skip


# The same sizes and settings in words.
PROFILES |= {f"{name}-natural": NaturalProfile(**vars(profile)) for name, profile in PROFILES.items()}


def profile_named(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in PROFILES:
        raise ConfigurationError(f"There is no profile '{name}'; there are {list(PROFILES)}.{nearest(name, PROFILES)}")
    return PROFILES[name]
