"""Any model of ours as lm-eval sees one: "lmcompose" among lm-eval's models, once this file is imported.

lm-eval's own class for transformers does the work, since a composition is a transformers model: batches with padding on
the left to generate, and on the right, behind everything that counts, to score. This file adds how a model is loaded,
scores in float32, a logit composition's alpha, draws with a seed of their own, and augmenting models that must be told
what the prompt is.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.cache import growing_cache
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.opening import load_model
from lmcompose.loading import Source, source_name

Request = tuple[Any, list[int], list[int]]
"""What to note an answer under, the tokens of the context and those of the continuation."""


@register_model("lmcompose")
class ComposedLM(HFLM):
    """A composition, or any other causal language model that lmcompose can load, for lm-eval."""

    def __init__(
        self,
        pretrained: Source,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        batch_size: int | str = 1,
        trust_remote_code: bool = False,
        use_safetensors: bool = True,
        alpha: float | None = None,
        **options: Any,
    ) -> None:
        """Load the model, where it is not a live one.

        Args:
            pretrained: a hub id, a folder (of a saved composition, a model or an adapter), a GGUF file, a live model,
                or (model, tokenizer).
            tokenizer: in place of the model's own.
            device: None is a GPU where there is one. A live model stays where it is.
            dtype: None keeps what was saved.
            batch_size: rows at once.
            alpha: in place of a logit composition's own parameter of that name, in all that is asked of it.
            options: further ones of lm-eval's `HFLM`, such as `max_length`.

        Raises:
            ConfigurationError: there is no tokenizer.
            MemberError, SavedFolderError: the model cannot be loaded.
        """
        model, own = load_model(pretrained, device, dtype, trust_remote_code, use_safetensors)
        tokenizer = tokenizer or own
        if tokenizer is None:
            raise ConfigurationError(
                f"'{source_name(pretrained)}' has no tokenizer, and texts cannot be read without one. Save the "
                "tokenizer into the model's folder, or give (model, tokenizer)."
            )
        options.setdefault("softmax_dtype", "float32")  # log-likelihoods of long answers in bf16 are off by whole nats
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, **options)
        self._parameters = {} if alpha is None else {"alpha": alpha}

    def _model_call(self, inps: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        """The logits of whole texts, with the composition's parameters."""
        if not self._parameters:
            logits: torch.Tensor = super()._model_call(inps, *given, **named)
            return logits
        with torch.no_grad():
            return cast(torch.Tensor, self.model(inps, **self._parameters).logits)

    def _model_generate(
        self,
        context: torch.Tensor,
        *given: Any,
        seed: str | None = None,
        ends_at_padding: bool = False,
        **named: Any,
    ) -> torch.Tensor:
        """Continue a batch of prompts, with the composition's parameters.

        Args:
            context: [batch, length] token ids.
            seed: what is drawn depends on it and on the prompts alone, whatever was drawn before.
            ends_at_padding: a text also ends at the token that pads, which for many models ends a document as another
                one ends a turn; no later decoding would show that it stood there.
        """
        if seed is not None:
            text = f"{seed} {context.tolist()}"
            torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]))
        if ends_at_padding:
            own = self.model.generation_config.eos_token_id
            ends = {
                *(own if isinstance(own, list) else [own]),
                self.tokenizer.eos_token_id,
                self.tokenizer.pad_token_id,
            }
            named["eos_token_id"] = sorted(ends - {None, self.tokenizer.unk_token_id})
        if not getattr(self.model, "is_composed", False) and (cache := growing_cache(self.model)) is not None:
            named[CACHE_ARGUMENT] = cache  # the model's own copies all that it holds at every token
        ids: torch.Tensor = super()._model_generate(context, *given, **self._parameters, **named)
        return ids

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation in nats, and whether greedy decoding gives it.

        A composition whose augmenting models read the prompt alone is told what the prompt is, one request at a time:
        left to itself it takes all that it is given for the prompt, and would read the answers.
        """
        if not getattr(self.model, "reads_prompts", False):
            scored: list[tuple[float, bool]] = super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
            return scored
        return [self._with_prompt(*request) for request in tqdm(requests, disable=disable_tqdm)]

    def is_too_long(self, context: str, answer: str | int) -> bool:
        """Whether a context with its answer (a text, or how many tokens one may have) is more than the model reads.

        lm-eval then leaves out the context's beginning.
        """
        room = answer if isinstance(answer, int) else len(self._encode_pair(context, answer)[1]) - 1
        return len(self.tok_encode(context)) + room > self.max_length

    @torch.no_grad()
    def _with_prompt(self, note: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        count = len(continuation)
        ids = torch.tensor([(context + continuation)[-(self.max_length + 1) : -1]], device=self.device)
        prompt = ids.shape[1] - count + 1
        logits = self.model(ids, prompt_length=prompt, logits_to_keep=count, use_cache=False).logits[0]  # [count, V]
        wanted = torch.tensor(continuation, device=logits.device)
        total = logits.float().log_softmax(dim=-1).gather(-1, wanted[:, None]).sum()
        answer = float(total), bool((logits.argmax(dim=-1) == wanted).all())
        if note is not None:
            self.cache_hook.add_partial("loglikelihood", note, answer)
        return answer
