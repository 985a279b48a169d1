"""The sizes at which the experiment is run, with every setting of every stage."""

import dataclasses
from dataclasses import dataclass

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.experiments.kv_arithmetic.composition import CompositionProfile, Phase
from lmcompose.experiments.kv_arithmetic.members import MemberProfile


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
        ),
        composition=CompositionProfile(
            num_heads=8,
            initializer_range=0.12,
            phases=(
                Phase(connections=((0, 0),), steps=1_000, rows=256, learning_rate=0.02, mix=(0, 1)),
                Phase(
                    connections=((0, 0), (2, 2)), steps=600, rows=192, learning_rate=0.01, mix=(0, 1),
                    substitution=0.3, all_keys=(0.75, 0.75), decay=0.8,
                ),
            ),
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
                width=128, layers=3, heads=8, mlp=512, steps=900, rows=128, learning_rate=1.5e-3,
                muon_learning_rate=0.008, weight_decay=0.01, mix=(1, 1, 4), sparse=0.5, unknown=0.3, noise=0.15,
                decay=0.6,
            ),
        ),
        composition=CompositionProfile(
            num_heads=8,
            initializer_range=0.05,
            phases=(
                Phase(
                    connections=((0, 0),), steps=1_600, rows=256, learning_rate=0.02, mix=(0, 1, 4), decay=0.7,
                ),
                Phase(
                    connections=((0, 0), (2, 3)), steps=500, rows=192, learning_rate=0.01, mix=(0, 0, 1),
                    substitution=0.3, all_keys=(0.75, 0.75), decay=0.8,
                ),
                Phase(
                    connections=((0, 0), (2, 3)), steps=1_700, rows=256, learning_rate=0.02, mix=(0, 0, 1),
                    substitution=0.25, all_keys=(0.75, 0.75), decay=0.85,
                ),
            ),
        ),
        tested=2_000,
    ),
}  # fmt: skip

# The same scale for arithmetic alone: no substitution is trained or expected. Its bridge is kept from writing more than
# the anchor's own embeddings hold, and its anchor has learned to read digits that are mixed with others.
PROFILES["paper_arithmetic"] = dataclasses.replace(
    PROFILES["paper"],
    anchor=(
        *PROFILES["paper"].anchor,
        dataclasses.replace(PROFILES["paper"].anchor[1], noise=0.1, mixing=0.15, decay=0.7),
    ),
    composition=CompositionProfile(
        num_heads=8,
        initializer_range=0.05,
        phases=(
            Phase(
                connections=((0, 0),), steps=2_400, rows=256, learning_rate=0.02, mix=(0, 1, 4), decay=0.75,
                written=0.5, written_decay=1.0,
            ),
        ),
    ),
)  # fmt: skip


def profile_named(name: str) -> Profile:
    """The profile called `name`.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in PROFILES:
        raise ConfigurationError(f"There is no profile '{name}'; there are {list(PROFILES)}.{nearest(name, PROFILES)}")
    return PROFILES[name]
