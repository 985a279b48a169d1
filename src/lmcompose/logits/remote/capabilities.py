"""What a completions endpoint can give, as far as it was found out. This file asks no server."""

from dataclasses import asdict, dataclass
from typing import Any

RAW, BIASED = "raw", "biased"
"""What log-probabilities a server states under `logit_bias`: the model's own, or those after the bias."""

ECHO, PROMPT_LOGPROBS = "echo", "prompt_logprobs"
"""By which request field a server states log-probabilities of a prompt's tokens."""


@dataclass(frozen=True)
class Capabilities:
    """What an endpoint gives.

    Attributes:
        model: the model's name in requests.
        depth: how many top log-probabilities a plain request asks for.
        deepest: how many the endpoint gives at most, as far as was tried.
        token_id_prompts: whether it reads token ids; otherwise it reads text, which has to be cut into the same tokens.
        token_ids: whether it names tokens by id; otherwise by strings, of which some stand for several tokens.
        prompt_logprobs: "echo" or "prompt_logprobs" where the tokens of a prompt get numbers, so that a drafted block
            is verified by one request; else None.
        named_token_ids: whether it states the log-probabilities of tokens that a request names.
        logit_bias: "raw" or "biased" where it honours a bias, by what it states then; else None.
        biased_at_once: how many tokens one request may bias.
        special_tokens: whether it puts the tokenizer's special tokens around a text.
        max_length: the longest text in tokens, where the endpoint says so.
        extras: fields that every request has, since this endpoint understands them.
        notes: what was refused and why, in sentences.
    """

    model: str
    depth: int
    deepest: int
    token_id_prompts: bool = False
    token_ids: bool = False
    prompt_logprobs: str | None = None
    named_token_ids: bool = False
    logit_bias: str | None = None
    biased_at_once: int = 300
    special_tokens: bool = True
    max_length: int | None = None
    extras: tuple[tuple[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "extras": dict(self.extras), "notes": list(self.notes)}

    def __str__(self) -> str:
        limit = f" of at most {self.max_length} tokens" if self.max_length else ""
        bias = {RAW: "yes, stating the model's own log-probabilities", BIASED: "yes, stating those after the bias"}
        lines = [
            f"model: {self.model}",
            f"prompts: {'token ids' if self.token_id_prompts else 'text'}{limit}",
            f"top log-probabilities: {self.depth}" + (f", up to {self.deepest}" if self.deepest > self.depth else ""),
            f"tokens in answers: {'ids' if self.token_ids else 'strings'}",
            f"log-probabilities of prompts: {'by ' + self.prompt_logprobs if self.prompt_logprobs else 'no'}",
            f"log-probabilities of named tokens: {'yes' if self.named_token_ids else 'no'}",
            f"logit_bias: {bias.get(self.logit_bias or '', 'no')}"
            + (f", {self.biased_at_once} tokens at once" if self.logit_bias else ""),
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])
