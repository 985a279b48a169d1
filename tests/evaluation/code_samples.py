"""A few problems in the layouts of HumanEval, MBPP and code to text, and tiny models that learn answers by heart."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.tiny import tiny_model
from tests.tokenizers import family

CHAT = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</{{ message['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

TRIPLE = 'def triple(x: int) -> int:\n    """ Three times x. """\n'
LAST = 'def one_more(n):\n    return n + 1\n\n\ndef last(items):\n    """ The last item, and one. """\n'
HUMANEVAL = [
    {
        "task_id": "Own/0",
        "prompt": TRIPLE,
        "entry_point": "triple",
        "canonical_solution": "    return 3 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 6\n    assert candidate(-1) == -3\n",
    },
    {
        "task_id": "Own/1",
        "prompt": LAST,
        "entry_point": "last",
        "canonical_solution": "    return one_more(items[-1])\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == one_more(2)\n",
    },
]
MBPP = [
    {
        "task_id": number,
        "text": f"Write a function to add {number} to a number.",
        "code": f"def add_{number}(x):\r\n    return x + {number}",
        "test_list": [f"assert add_{number}({x}) == {x + number}" for x in (0, 1)],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    for number in (2, 3, 4, 11, 12, 600)
]
PAIRS = [
    {"code": f"def add_{number}(x):\n    return x + {number}", "docstring": f"Add {number} to a number.\n\nMore."}
    for number in range(14)
]


def write_code_samples(folder: Path) -> Path:
    """A folder as `--data` takes it, with HumanEval (compressed), MBPP and code to text."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "HumanEval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(_lines(HUMANEVAL))
    files = {"mbpp/mbpp.jsonl": MBPP, "code_to_text/code_to_text-heldout.jsonl": PAIRS}
    for name, rows in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(_lines(rows), encoding="utf-8")
    return folder


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def tokenizer_with_template() -> Any:
    tokenizer = copy.deepcopy(family("qwen"))  # which is one for all tests
    tokenizer.chat_template = CHAT
    return tokenizer


def blank(seed: int = 1) -> Any:
    """A tiny model that knows nothing, with its tokenizer."""
    tokenizer = tokenizer_with_template()
    model = tiny_model("llama", seed, vocab_size=len(tokenizer), max_position_embeddings=1024)
    return _with_ends(model, tokenizer), tokenizer


def taught(answers: Mapping[str, str], tokenizer: Any = None, steps: int = 400) -> Any:
    """A tiny model that answers these prompts so, greedily, with its tokenizer."""
    tokenizer = tokenizer or tokenizer_with_template()
    model = tiny_model("llama", 0, vocab_size=len(tokenizer), hidden_size=64, max_position_embeddings=1024)
    rows, labels = [], []
    for prompt, answer in answers.items():
        before, after = (tokenizer(text)["input_ids"] for text in (prompt, answer))
        rows.append([*before, *after, tokenizer.eos_token_id])
        labels.append([-100] * len(before) + rows[-1][len(before) :])
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    wanted = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        loss = model(input_ids=ids, labels=wanted).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 2e-3:
            break
    assert float(loss.detach()) < 0.05, "the answers were not learnt"
    return _with_ends(model.eval(), tokenizer), tokenizer


def _with_ends(model: Any, tokenizer: Any) -> Any:
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    return model
