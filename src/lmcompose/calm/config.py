"""The configuration of a CALM composition: which members, which connections, how the bridges are built."""

from typing import Any, ClassVar

from transformers import AutoConfig

from lmcompose.architecture import check_connectable
from lmcompose.calm.bridge import PROJECTIONS
from lmcompose.calm.connections import Connection, check_connections
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.saved import ComposedConfig

ANCHOR = "anchor"
IDS, SPANS = ALIGNMENTS = ("ids", "spans")


class CalmConfig(ComposedConfig):
    """What a CALM composition saves beside its weights.

    Args:
        members: references by role: `anchor` first, then each augmenting model under its name.
        connections: augmenting name -> list of [augmenting layer, anchor layer].
        num_heads: N_H of the cross-attention; the paper takes the anchor's.
        projection: f_proj, "linear" as in the paper, or "mlp" (beyond the paper).
        bridge_initializer_range: standard deviation of the initial composition parameters but W_O, which is zero.
        alignment: augmenting name -> one of `ALIGNMENTS`: "ids" where it reads the anchor's tokens, "spans" where it
            reads the same text in tokens of its own. A name that is not there shares the anchor's tokens.
    """

    model_type = "calm"
    made: ClassVar[str] = "was trained with"

    connections: dict[str, Any] | None = None
    num_heads: int | None = None
    projection: str = "linear"
    bridge_initializer_range: float = 0.02
    alignment: dict[str, str] | None = None

    def has_own_tokens(self, name: str) -> bool:
        """Whether an augmenting model reads the text in tokens of its own."""
        return (self.alignment or {}).get(name) == SPANS

    def augmenting_names(self) -> list[str]:
        """The names of the augmenting models, in order."""
        return [role for role in (self.members or {}) if role != ANCHOR]

    def pairs(self, name: str) -> list[Connection]:
        """The connections of one augmenting model."""
        return [(augmenting, anchor) for augmenting, anchor in (self.connections or {})[name]]

    def check(self) -> None:
        """Refuse what cannot be built.

        Raises:
            ConfigurationError: an unknown projection, heads that do not divide the width, impossible connections.
            MemberError: a member whose layers cannot be connected to.
        """
        if self.projection not in PROJECTIONS:
            raise ConfigurationError(
                f"projection='{self.projection}' is unknown; it is one of {list(PROJECTIONS)}."
                f"{nearest(self.projection, PROJECTIONS)}"
            )
        references = self.references()
        for role, reference in references.items():
            check_connectable(reference.model_type, reference.name_or_path, role)
        anchor = references[ANCHOR]
        if not self.num_heads or self.num_heads < 1 or anchor.hidden_size % self.num_heads:
            raise ConfigurationError(
                f"num_heads = {self.num_heads} does not divide the anchor's width {anchor.hidden_size}. Choose a "
                f"divisor; the anchor itself has {anchor.num_attention_heads} heads."
            )
        unknown = set(self.connections or {}) ^ set(self.augmenting_names())
        if unknown:
            raise ConfigurationError(
                f"Connections are given for {sorted(self.connections or {})}, but the augmenting models are "
                f"{self.augmenting_names()}. Give connections for each of them, or for none."
            )
        for name in self.augmenting_names():
            check_connections(self.pairs(name), references[name].num_hidden_layers, anchor.num_hidden_layers)


def check_name(name: str) -> None:
    """Refuse an augmenting name that cannot be a part of a parameter's name.

    Raises:
        ConfigurationError: not an identifier, or `anchor`.
    """
    if not name.isidentifier() or name == ANCHOR:
        raise ConfigurationError(
            f"'{name}' cannot name an augmenting model: use letters, digits and underscores, and not '{ANCHOR}'."
        )


AutoConfig.register(CalmConfig.model_type, CalmConfig, exist_ok=True)
