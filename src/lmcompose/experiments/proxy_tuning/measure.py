"""What the models of one seed say about held-out text, document by document, and what they write themselves.

All of it is sums over the tokens of a document, of which `gaps.py` makes figures; this file makes none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

import lmcompose
from lmcompose.evaluation.scoring import divergence
from lmcompose.experiments.proxy_tuning.texts import Rows
from lmcompose.experiments.stages import Report
from lmcompose.logits.model import LogitForCausalLM

ROWS_AT_ONCE = 32

Pair = tuple[LlamaForCausalLM, LlamaForCausalLM]
"""An expert and its antiexpert."""
Sums = dict[str, list[float]]
"""Name -> a sum over the tokens of each document."""


class Tally:
    """Adds up numbers of tokens by document."""

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor, documents: torch.Tensor) -> None:
        """Add `values` [rows, positions] where `mask` is 1; row i is of the document `documents[i]`."""
        sums = self._sums.setdefault(name, torch.zeros(self._documents, dtype=torch.float64))
        sums.index_add_(0, documents, (values.double() * mask).sum(dim=1))

    def sums(self, prefix: str) -> Sums:
        """The sums whose name is `prefix/name`, by name."""
        kept = {name.partition("/")[2]: sums for name, sums in self._sums.items() if name.startswith(f"{prefix}/")}
        return {name: sums.tolist() for name, sums in kept.items()}


def compositions(
    base: LlamaForCausalLM, pairs: Mapping[str, Pair], tokenizer: PreTrainedTokenizerBase
) -> dict[str, LogitForCausalLM]:
    """The proxy-tuned base with each pair, and under "expert_only" with the first pair's expert alone."""
    models = {
        arm: lmcompose.proxy_tune((base, tokenizer), (expert, tokenizer), (antiexpert, tokenizer))
        for arm, (expert, antiexpert) in pairs.items()
    }
    expert = next(iter(pairs.values()))[0]
    return models | {"expert_only": lmcompose.proxy_tune((base, tokenizer), (expert, tokenizer))}


@torch.no_grad()
def measure(
    models: Mapping[str, LogitForCausalLM],
    tuned: LlamaForCausalLM,
    rows: Rows,
    alphas: Sequence[float],
    temperatures: Sequence[float],
    report: Report | None = None,
) -> dict[str, Any]:
    """All sums over held-out `rows`.

    Args:
        models: from `compositions`; the first is swept.
        tuned: the directly tuned base.
        alphas, temperatures: to sweep over: the first of `models` at each alpha, and "expert_only" too; and the base,
            the expert, the composition and the tuned base with their scores divided by each temperature.

    Returns:
        `tokens`, per document; and Sums: `nats`, minus log-probabilities, of every model; `alpha` and `temperature`,
        the same of the sweeps, by "<model>@<value>"; `kl`, divergences KL(p || q) by "<p> <q>"; and `agreement`, how
        often two models have the same likeliest token, by "<p> <q>". The members of an arm but the first have its name
        before theirs: "other antiexpert".
    """
    tally, main = Tally(int(rows.documents.max()) + 1), next(iter(models))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chosen = torch.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
        ids, mask = rows.take(chosen)
        batch = _Batch(tally, ids, mask, rows.documents[chosen])
        scores = {"tuned": tuned(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()}
        for arm, model in models.items():
            output = model(input_ids=ids, attention_mask=mask, output_member_scores=True, use_cache=False)
            before = "" if arm in (main, "expert_only") else f"{arm} "
            scores |= {before + role if role != "base" else role: each for role, each in output.member_scores.items()}
            scores["proxy" if arm == main else arm if arm == "expert_only" else f"{arm} proxy"] = output.logits
            if arm in (main, "expert_only"):
                name = "proxy" if arm == main else arm
                for alpha in alphas:
                    batch.nats(f"alpha/{name}@{alpha:g}", model.composed_logits(output.member_scores, {"alpha": alpha}))
        batch.tally.add("tokens/tokens", torch.ones_like(batch.mask), batch.mask, batch.documents)
        logs = {name: each[:, :-1].log_softmax(dim=-1) for name, each in scores.items()}
        for name, each in scores.items():
            batch.nats(f"nats/{name}", each)
            if name in ("base", "expert", "proxy", "tuned"):
                for temperature in temperatures:
                    batch.nats(f"temperature/{name}@{temperature:g}", each / temperature)
            if name != "tuned":
                batch.add(f"kl/tuned {name}", divergence(logs["tuned"], logs[name]))
                same = logs["tuned"].argmax(dim=-1) == logs[name].argmax(dim=-1)
                batch.add(f"agreement/tuned {name}", same)
            if name.endswith("antiexpert"):
                batch.add(f"kl/base {name}", divergence(logs["base"], logs[name]))
        if report is not None:
            report(int(chosen[-1]) + 1, len(rows), float("nan"))
    kinds = ("nats", "alpha", "temperature", "kl", "agreement")
    return {"tokens": tally.sums("tokens")["tokens"], **{kind: tally.sums(kind) for kind in kinds}}


class _Batch:
    """Some rows, and where the numbers of their tokens are added up; the first token of a row is only read."""

    def __init__(self, tally: Tally, ids: torch.Tensor, mask: torch.Tensor, documents: torch.Tensor) -> None:
        self.tally, self.documents = tally, documents
        self._targets, self.mask = ids[:, 1:, None], mask[:, 1:]

    def add(self, name: str, values: torch.Tensor) -> None:
        self.tally.add(name, values, self.mask, self.documents)

    def nats(self, name: str, scores: torch.Tensor) -> None:
        """Minus the log-probability of each token, of scores [rows, length, vocabulary]."""
        self.add(name, -scores[:, :-1].log_softmax(dim=-1).gather(-1, self._targets)[..., 0])


@torch.no_grad()
def sums_on(models: Mapping[str, PreTrainedModel], rows: Rows, temperature: Mapping[str, float]) -> dict[str, Any]:
    """The `tokens` and `nats` of plain models; the scores of some are divided by their `temperature`."""
    tally = Tally(int(rows.documents.max()) + 1)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chosen = torch.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
        ids, mask = rows.take(chosen)
        batch = _Batch(tally, ids, mask, rows.documents[chosen])
        batch.add("tokens/tokens", torch.ones_like(batch.mask))
        for name, model in models.items():
            scores = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
            batch.nats(f"nats/{name}", scores / temperature.get(name, 1.0))
    return {"tokens": tally.sums("tokens")["tokens"], "nats": tally.sums("nats")}


def write(
    models: Mapping[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    new_tokens: int,
    temperature: float,
    seed: int,
) -> dict[str, list[str]]:
    """`count` texts by each model, sampled from nothing but the beginning-of-text token."""
    texts: dict[str, list[str]] = {}
    for name, model in models.items():
        start = torch.full((count, 1), int(tokenizer.bos_token_id))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            rows = model.generate(  # type: ignore[operator]
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=new_tokens,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                pad_token_id=tokenizer.eos_token_id,
            )
        texts[name] = _plain(tokenizer.batch_decode(rows, skip_special_tokens=True))
    return texts


def _plain(texts: Iterable[str]) -> list[str]:
    return [text.strip() for text in texts]
