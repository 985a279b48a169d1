"""The configuration of a CALM composition: which members, which connections, how the bridges are built."""

from typing import Any, ClassVar

from transformers import AutoConfig

from lmcompose.architecture import check_connectable
from lmcompose.calm.bridge import PROJECTIONS
from lmcompose.calm.connections import Connection, check_connections, check_unfrozen
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.saved import ComposedConfig

ANCHOR = "anchor"
IDS, SPANS = ALIGNMENTS = ("ids", "spans")
BEYOND = ("gate", "norm", "rank")
"""Options of the bridges that the paper does not have; each is off where it is not true."""
TEXT, PROMPT = READS = ("text", "prompt")


class CalmConfig(ComposedConfig):
    """What a CALM composition saves beside its weights.

    Args:
        members: references by role: `anchor` first, then each augmenting model under its name.
        connections: augmenting name -> list of [augmenting layer, anchor layer].
        num_heads: N_H of the cross-attention; the paper takes the anchor's.
        projection: f_proj, "linear" as in the paper, or "mlp" (beyond the paper).
        gate, norm, rank: more of `Bridge` that goes beyond the paper; off by default.
        bridge_initializer_range: standard deviation of the initial composition parameters but W_O, or the gates, which
            are zero.
        alignment: augmenting name -> one of `ALIGNMENTS`: "ids" where it reads the anchor's tokens, "spans" where it
            reads the same text in tokens of its own. A name that is not there shares the anchor's tokens.
        unfreeze: role -> decoder layers, counted from 1, that the composition trains weights of its own for (beyond the
            paper).
        reads: augmenting name -> one of `READS`: "text" where it reads every token, "prompt" where it reads the prompt
            once and no token after it (the paper's ablation, m_A as an encoder). A name that is not there reads all.
    """

    model_type = "calm"
    made: ClassVar[str] = "was trained with"

    connections: dict[str, Any] | None = None
    num_heads: int | None = None
    projection: str = "linear"
    gate: bool = False
    norm: bool = False
    rank: int | None = None
    bridge_initializer_range: float = 0.02
    alignment: dict[str, str] | None = None
    unfreeze: dict[str, Any] | None = None
    reads: dict[str, str] | None = None

    def has_own_tokens(self, name: str) -> bool:
        """Whether an augmenting model reads the text in tokens of its own."""
        return (self.alignment or {}).get(name) == SPANS

    def bridge_options(self) -> dict[str, Any]:
        """How the bridges are built, as the arguments of `Bridge` and `bridge_shapes`."""
        return {"projection": self.projection, **{option: getattr(self, option) for option in BEYOND}}

    def beyond_the_paper(self) -> dict[str, Any]:
        """Those of `BEYOND` that are on."""
        return {option: value for option in BEYOND if (value := getattr(self, option))}

    def reads_prompt(self, name: str) -> bool:
        """Whether an augmenting model reads the prompt alone."""
        return (self.reads or {}).get(name) == PROMPT

    def prompt_readers(self) -> list[str]:
        """The names of the augmenting models that read the prompt alone, in order."""
        return [name for name in self.augmenting_names() if self.reads_prompt(name)]

    def augmenting_names(self) -> list[str]:
        """The names of the augmenting models, in order."""
        return [role for role in (self.members or {}) if role != ANCHOR]

    def pairs(self, name: str) -> list[Connection]:
        """The connections of one augmenting model."""
        return [(augmenting, anchor) for augmenting, anchor in (self.connections or {})[name]]

    def check(self) -> None:
        """Refuse what cannot be built.

        Raises:
            ConfigurationError: an unknown projection, heads that do not divide the width, a rank that no matrix of a
                bridge can have, impossible connections.
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
            narrow = min(anchor.hidden_size, references[name].hidden_size)
            if self.rank is not None and not 1 <= self.rank <= narrow:
                raise ConfigurationError(
                    f"rank = {self.rank} cannot be with '{name}': the narrower of the two models has a width "
                    f"of {narrow}. Choose a rank from 1 to {narrow}, small beside the anchor's width of "
                    f"{anchor.hidden_size}, or leave it out."
                )
            check_connections(self.pairs(name), references[name].num_hidden_layers, anchor.num_hidden_layers)
        for role, layers in (self.unfreeze or {}).items():
            if role not in references:
                raise ConfigurationError(
                    f"unfreeze: there is no member '{role}'; they are {list(references)}.{nearest(role, references)}"
                )
            pairs = None if role == ANCHOR else self.pairs(role)
            check_unfrozen(role, layers, references[role].num_hidden_layers, pairs)
        self._check_reads()

    def _check_reads(self) -> None:
        names = self.augmenting_names()
        for name, word in (self.reads or {}).items():
            if word not in READS or name not in names:
                word, words = (word, READS) if name in names else (name, names)
                raise ConfigurationError(f"reads: '{word}' is none of {', '.join(words)}.{nearest(str(word), words)}")
            if word == PROMPT and self.has_own_tokens(name):
                raise ConfigurationError(
                    f"reads: '{name}' has a tokenizer of its own, and with one a model reads every token, so that it "
                    "can be told which of its own tokens are final. Leave out 'prompt' for it."
                )


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
