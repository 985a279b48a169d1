"""What a generation with a remote base gives: text, tokens, and what is certain about each of them.

This file knows no server and no model.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lmcompose.logits.remote.capabilities import Capabilities


@dataclass(frozen=True)
class RemoteToken:
    """A generated token and its certificate.

    Attributes:
        token_id: of the shared tokenizer.
        text: what it adds to the text; empty where a character is not whole yet.
        proved: greedy: that it is the composition's choice; sampled: that it was drawn from exactly its distribution.
        how: the feature of the server that it took, or why it could not be proved.
        margin: greedy, how far its score lies above what any other token can reach (below 0: how far one may lie above
            it); None where only the server knows.
        doubt: sampled and not proved, how probable the tokens that could not be drawn are at most.
        requests: how many requests it took; a drafted token shares one with its block.
    """

    token_id: int
    text: str
    proved: bool
    how: str
    margin: float | None = None
    doubt: float = 0.0
    requests: int = 1


@dataclass(frozen=True)
class Certificate:
    """How much of what was generated is certain.

    Attributes:
        tokens: how many there are.
        unproved: how many of them could not be proved.
    """

    tokens: int
    unproved: int

    @property
    def exact(self) -> bool:
        """Whether every token is what the composition gives with the whole of the base's distribution."""
        return self.unproved == 0

    def __str__(self) -> str:
        return "exact" if self.exact else f"{self.unproved} of {self.tokens} tokens could not be proved"


@dataclass
class RemoteText:
    """What was generated for one prompt.

    Attributes:
        prompt: its token ids.
        tokens: the generated ones.
        text: of the generated tokens, without special ones.
        finish_reason: "end" after a token that ends the text, "length", or "" while it is under way.
    """

    prompt: list[int]
    tokens: list[RemoteToken] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""

    @property
    def token_ids(self) -> list[int]:
        """The generated token ids."""
        return [token.token_id for token in self.tokens]

    @property
    def certificate(self) -> Certificate:
        """How much of it is certain."""
        return _certificate([self])


@dataclass
class RemoteResult:
    """What was generated for all prompts, and what it took.

    Attributes:
        outputs: one per prompt, in their order.
        capabilities: what the endpoint can give.
        features: how many requests used which feature of the server.
        requests: requests that were sent, with repeated ones and without those of the probe.
        retried: those among them that were repeats.
        drafted, accepted: tokens of drafted blocks, and how many of them were kept.
        seconds: the time it took.
    """

    outputs: list[RemoteText]
    capabilities: Capabilities
    features: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    retried: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    @property
    def texts(self) -> list[str]:
        """The generated text of each prompt."""
        return [output.text for output in self.outputs]

    @property
    def token_ids(self) -> list[list[int]]:
        """The generated token ids of each prompt."""
        return [output.token_ids for output in self.outputs]

    @property
    def certificate(self) -> Certificate:
        """How much of all of it is certain."""
        return _certificate(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **asdict(self),
            "capabilities": self.capabilities.to_dict(),
            "certificate": {**asdict(self.certificate), "exact": self.certificate.exact},
        }


def _certificate(outputs: Sequence[RemoteText]) -> Certificate:
    tokens = [token for output in outputs for token in output.tokens]
    return Certificate(len(tokens), sum(not token.proved for token in tokens))
