"""What a model writes after prompts: greedily, or sampled several times, so that a run can be taken up anywhere.

What is written for a prompt depends on the prompt, its number and the settings, not on what was written before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from lmcompose.architecture import stated_length
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.opening import Loading
from lmcompose.loading import Source


@dataclass(frozen=True)
class Writing:
    """How a text is written.

    Attributes:
        max_new_tokens: at most so many.
        samples: texts for each prompt.
        temperature: 0 takes the likeliest token each time.
        top_p: sample among the likeliest tokens that make up this much.
        stop: texts before which a text ends.
        chat: wrap the prompt in the tokenizer's chat template, as a user's message.
        seed: of the sampling.
    """

    max_new_tokens: int = 256
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    chat: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.samples < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigurationError(
                f"max_new_tokens = {self.max_new_tokens} and samples = {self.samples} must be 1 or more, temperature = "
                f"{self.temperature} 0 or more, and top_p = {self.top_p} above 0 and up to 1."
            )
        if self.samples > 1 and self.temperature == 0:
            raise ConfigurationError("At temperature 0 all samples are the same: ask for one, or sample.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "stop": list(self.stop)}


class Writer:
    """One model that writes.

    Args:
        source: anything that can be evaluated: a folder, a hub id, a live model, (model, tokenizer).
        loading: how it is loaded, and how many texts it writes at once.

    Raises:
        MemberError, SavedFolderError: the model cannot be loaded.
        ConfigurationError: it has no tokenizer.
    """

    def __init__(self, source: Source, loading: Loading | None = None) -> None:
        loading = loading or Loading()
        self.model, self.tokenizer = loading.model(source)
        self.batch_size = loading.batch_size if self.tokenizer.pad_token_id is not None else 1

    def write(self, prompts: Sequence[tuple[int, str]], how: Writing) -> Iterator[tuple[int, list[str]]]:
        """The texts after each prompt, as soon as they are there.

        Args:
            prompts: each with its number, which seeds its samples.

        Yields:
            The number, and `how.samples` texts.

        Raises:
            ConfigurationError: the tokenizer has no chat template, and `how` asks for one.
            DataError: a prompt leaves no room for an answer, said before anything is written.
        """
        encoded = [(number, self._encode(prompt, how)) for number, prompt in prompts]
        longest = stated_length(self.model.config)
        for number, ids in encoded:
            if longest is not None and len(ids) + how.max_new_tokens > longest:
                raise DataError(
                    f"Prompt {number} has {len(ids)} tokens, and with {how.max_new_tokens} new ones that is more than "
                    f"the {longest} that the model reads. Shorten it, or ask for fewer with --max-new-tokens."
                )
        if how.temperature == 0:
            for start in range(0, len(encoded), self.batch_size):
                rows = encoded[start : start + self.batch_size]
                texts = self._generate([ids for _, ids in rows], how)
                yield from ((number, [text]) for (number, _), text in zip(rows, texts, strict=True))
            return
        for number, ids in encoded:
            texts = []
            for start in range(0, how.samples, self.batch_size):
                torch.manual_seed(_seed(how.seed, number, start))
                texts += self._generate([ids] * min(self.batch_size, how.samples - start), how)
            yield number, texts

    def _encode(self, prompt: str, how: Writing) -> list[int]:
        if not how.chat:
            ids = self.tokenizer(prompt)["input_ids"]
        elif self.tokenizer.chat_template is None:
            raise ConfigurationError("The model's tokenizer has no chat template. Leave out --chat.")
        else:
            message = [{"role": "user", "content": prompt}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]  # a chat template writes its own
        if not ids:
            raise DataError(f"The prompt {prompt[:40]!r} has no tokens for this model's tokenizer. Give a longer text.")
        return list(ids)

    @torch.no_grad()
    def _generate(self, rows: list[list[int]], how: Writing) -> list[str]:
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, longest - len(row) :] = torch.tensor(row)
            mask[at, longest - len(row) :] = 1
        # a model's own settings would decode two systems in two ways
        options: dict[str, Any] = {
            "max_new_tokens": how.max_new_tokens,
            "do_sample": how.temperature > 0,
            "repetition_penalty": 1.0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
        }
        if how.temperature > 0:
            options |= {"temperature": how.temperature, "top_p": how.top_p, "top_k": 0}
        if how.stop:
            options["stopping_criteria"] = StoppingCriteriaList([_StopText(self.tokenizer, longest, how.stop)])
        generate = cast(Any, self.model).generate
        device = self.model.device
        output = generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            pad_token_id=self.tokenizer.pad_token_id,
            **options,
        )
        rows = [_before_end(self.model, row) for row in output[:, longest:].tolist()]
        return [cut(str(self.tokenizer.decode(row, skip_special_tokens=True)), how.stop) for row in rows]


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop text."""
    return min((text.split(each)[0] for each in stop if each), key=len, default=text)


def _before_end(model: PreTrainedModel, row: list[int]) -> list[int]:
    """The tokens up to the one that ends the text; what `generate` puts behind it is padding."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    return next((row[:at] for at, token in enumerate(row) if token in ends), row)


def _seed(*parts: int) -> int:
    """One seed of several numbers, of which each counts."""
    found = 0
    for part in parts:
        found = (found * 1_000_003 + part + 1) % (2**63)
    return found


class _StopText(StoppingCriteria):
    """A row ends once a stop text stands in what it wrote."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: int, stop: Sequence[str]) -> None:
        self.tokenizer, self.start, self.stop = tokenizer, start, [each for each in stop if each]

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :], skip_special_tokens=True)
        done = [any(each in text for each in self.stop) for text in texts]
        return torch.tensor(done, device=input_ids.device)
