"""A base behind a real server: is what comes out what the same composition gives with the base in this process?

    make remote-server MODEL=FOLDER                          with vLLM, which is set up and started for it
    python benchmarks/remote.py --model FOLDER --url http://127.0.0.1:8000    with a server that runs already

The server runs the model of FOLDER in float32. Expert and antiexpert are copies of it with some noise on their weights,
so that they are of its family and disagree with it. Greedy texts of `remote_generate` are compared token by token with
those of `lmcompose.proxy_tune`, in these ways of asking the server:

- token ids: as its features allow, with drafted blocks.
- no drafts: one request for each token, and what more is needed to prove it.
- the list alone: one request for each token and no more, so that some tokens cannot be proved.
- texts: the server is asked as one that reads no token ids and names none: texts go there, strings come back.

It fails when a text that is certified is another one than the local composition's, unless two tokens tie there.
"""

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import lmcompose
from lmcompose.card import run_record
from lmcompose.errors import RemoteError
from lmcompose.folders import write_text_atomic
from lmcompose.logits.remote import RemoteBase, RemoteText, remote_generate
from lmcompose.logits.remote.client import Client
from lmcompose.reporting.remote_tables import remote_grids, remote_markdown

PROMPTS = ("Once upon a time, there was a little girl", "def add(a, b):")
TIE = 1e-3
"""Two servers' kernels round differently: scores that lie no further apart can come out either way round."""
WAYS: dict[str, dict[str, Any]] = {
    "token ids": {},
    "no drafts": {"draft_length": 0},
    "the list alone": {"draft_length": 0, "extra_requests": 0},
    "texts": {},
}


class TextClient(Client):
    """A client that has token ids refused, as servers do that know texts and strings only."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """As `Client.post`, for texts only."""
        if not isinstance(body["prompt"], str) or "return_tokens_as_token_ids" in body:
            raise RemoteError("token ids are not asked for in this check", status=422)
        return super().post(path, body)


def noisy(model: PreTrainedModel, noise: float, seed: int) -> PreTrainedModel:
    """A copy with normal noise on every weight, `noise` times its tensor's standard deviation."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    return other


@torch.no_grad()
def compare(model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int], remote: RemoteText) -> dict[str, Any]:
    """Where the remote text first differs from the local one, how far apart the two tokens' local scores are there.

    Args:
        model: the local composition, which wrote `ids` [new] after `prompt` [length].
        remote: what the remote base wrote.
    """
    there = remote.token_ids
    if there == list(ids):
        return {"same": True, "alike": len(ids)}
    alike = next((i for i, pair in enumerate(zip(ids, there, strict=False)) if pair[0] != pair[1]), None)
    if alike is None:  # one ends where the other goes on
        return {"same": False, "alike": min(len(ids), len(there)), "proved": True, "apart": float("inf")}
    scores = model(torch.tensor([[*prompt, *ids[:alike]]])).logits[0, -1]
    apart = float(scores[ids[alike]] - scores[there[alike]])
    return {"same": False, "alike": alike, "proved": remote.tokens[alike].proved, "apart": apart}


def is_wrong(compared: dict[str, Any]) -> bool:
    """Whether a token was certified that is not the composition's."""
    return not compared["same"] and compared["proved"] and compared["apart"] > TIE


def probed_base(options: argparse.Namespace, local: dict[str, Any], texts: bool) -> tuple[RemoteBase, dict[str, Any]]:
    """The remote base, asked for texts alone or not, and what its probe found and took."""
    base = RemoteBase(options.url, tokenizer=local["tokenizer"])
    if texts:
        base.client = TextClient(options.url)
    started = time.perf_counter()
    found = base.probe().to_dict()
    return base, {
        "requests": base.client.requests, "seconds": time.perf_counter() - started, "capabilities": found,
    }  # fmt: skip


def run_way(base: RemoteBase, way: str, local: dict[str, Any], prompts: Any, new_tokens: int) -> dict[str, Any]:
    """Generate in one way of asking the server, and compare."""
    result = remote_generate(
        base, local["pair"], prompts, max_new_tokens=new_tokens, eos_token_id=local["end"], **WAYS[way]
    )
    compared = [
        compare(local["model"], prompt, ids, output)
        for prompt, ids, output in zip(local["prompts"], local["ids"], result.outputs, strict=True)
    ]
    return {
        "way": way,
        "certificate": {**dataclasses.asdict(result.certificate), "exact": result.certificate.exact},
        "compared": compared,
        "requests": result.requests,
        "features": result.features,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "seconds": result.seconds,
        "texts": result.texts,
    }


def run_local(options: argparse.Namespace) -> dict[str, Any]:
    """The members, and what their composition writes in this process."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    pair = {"expert": noisy(base, options.noise, 1), "antiexpert": noisy(base, options.noise, 2)}
    model = lmcompose.proxy_tune((base, tokenizer), **pair)
    end = model.generation_config.eos_token_id
    prompts, written, alone = [], [], []
    started = time.perf_counter()
    for prompt in options.prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        output = model.generate(ids, max_new_tokens=options.new_tokens, do_sample=False)
        prompts.append(ids[0].tolist())
        written.append(output[0, ids.shape[1] :].tolist())
    seconds = time.perf_counter() - started
    for ids in prompts:
        output = model.generate(torch.tensor([ids]), max_new_tokens=options.new_tokens, do_sample=False, alpha=0.0)
        alone.append(output[0, len(ids) :].tolist())
    return {"tokenizer": tokenizer, "pair": pair, "model": model, "end": end, "prompts": prompts, "ids": written,
            "seconds": seconds, "shifted": sum(a != b for a, b in zip(alone, written, strict=True))}  # fmt: skip


def main() -> None:
    """Run every way, print the tables, write the JSON and the Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model that the server runs")
    parser.add_argument("--server", default="not stated", help="the server's name and version, for the record")
    parser.add_argument("--made-by", help="the command, for the record, where another one calls this")
    parser.add_argument("--noise", type=float, default=0.1, help="of expert and antiexpert (default 0.1)")
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--prompts", nargs="+", default=list(PROMPTS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, help="CPU threads for arithmetic (default: as torch chooses)")
    parser.add_argument("--output", type=Path, default=Path("results/remote/vllm.json"))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    local = run_local(options)
    rows: list[dict[str, Any]] = []
    bases: dict[bool, tuple[RemoteBase, dict[str, Any]]] = {}
    for way in options.ways:
        texts = way == "texts"
        if texts not in bases:
            bases[texts] = probed_base(options, local, texts)
        base, probed = bases[texts]
        prompts = options.prompts if texts else local["prompts"]
        rows.append({**run_way(base, way, local, prompts, options.new_tokens), "probe": probed})
        print(f"{way}: {rows[-1]['certificate']}", file=sys.stderr)
    result = {
        "what": "remote_check",
        **run_record(command=options.made_by),
        "server": options.server,
        "model": options.model.resolve().name,
        "noise": options.noise,
        "prompts": options.prompts,
        "new_tokens": options.new_tokens,
        "threads": torch.get_num_threads(),
        "local": {"tokens": sum(map(len, local["ids"])), "seconds": local["seconds"], "shifted": local["shifted"]},
        "results": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(options.output, json.dumps(result, indent=2) + "\n")
    write_text_atomic(options.output.with_suffix(".md"), remote_markdown(result))
    console = Console()
    for grid in remote_grids(result):
        console.print(grid.to_rich())
    console.print(f"Written to {options.output}")
    wrong = [row["way"] for row in rows if any(is_wrong(compared) for compared in row["compared"])]
    if wrong:
        sys.exit(f"Certified tokens are not those of the local composition: {', '.join(wrong)}. See {options.output}.")


if __name__ == "__main__":
    main()
