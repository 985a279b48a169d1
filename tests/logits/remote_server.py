"""A small completions server for tests: it answers from a real model, in the ways of several real servers.

`CompletionsServer(model, tokenizer, Manners(...))` runs in a thread of this process. What a server can do, and how it
says it, is in its `Manners`; how it fails is in its list of `troubles`, of which each request takes one.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

KNOWN_FIELDS = {"model", "prompt", "max_tokens", "temperature", "logprobs", "echo", "logit_bias"}


@dataclass(frozen=True)
class Manners:
    """What a server can do and how it says it.

    Attributes:
        top: the most log-probabilities it lists.
        refuses_deeper: whether it refuses a request for more; otherwise it lists fewer.
        token_ids: whether it reads lists of token ids.
        names: how it names tokens: "alone" as decoded alone, "entry" as in the vocabulary, "chat" in a content list
            with ids, "ids" as token_id:7 when it is asked to.
        echo: "yes", "no" (it refuses) or "shifted" (as llama-cpp-python without a begin-of-text token).
        prompt_logprobs, named: vLLM's two fields.
        logit_bias: "raw", "biased", or None for a server that ignores it.
        strict: whether it refuses fields that it does not know, as OpenAI does.
        logprobs: "yes", "no" (it leaves them out), "refused", or "chosen" (of the chosen token alone).
        hides_end: whether it leaves out the token that ends a text, as llama-cpp-python does.
        counts: whether it says how many tokens it read.
        special: whether it puts special tokens around a text.
        begin: a token that it puts before every text.
        extra_token: whether every text is read as one token more, as by another tokenizer.
        max_length: what its list of models says.
    """

    top: int = 5
    refuses_deeper: bool = False
    token_ids: bool = False
    names: str = "alone"
    echo: str = "no"
    prompt_logprobs: bool = False
    named: bool = False
    logit_bias: str | None = None
    strict: bool = False
    logprobs: str = "yes"
    hides_end: bool = False
    counts: bool = True
    begin: int | None = None
    extra_token: bool = False
    max_length: int | None = None
    models: tuple[str, ...] = ("tiny",)


VLLM = Manners(
    top=20, refuses_deeper=True, token_ids=True, names="ids", echo="yes", prompt_logprobs=True, named=True,
    logit_bias="raw", max_length=100,
)  # fmt: skip
LLAMA_CPP_PYTHON = Manners(top=1000, echo="shifted", logit_bias="raw", hides_end=True)
LLAMA_CPP = Manners(top=1000, token_ids=True, names="chat", echo="no", logit_bias="raw")
OPENAI = Manners(top=5, refuses_deeper=True, token_ids=True, echo="yes", logit_bias="biased", strict=True)
PLAIN = Manners()


class RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CompletionsServer:
    """A server in a thread; `with CompletionsServer(...) as server: server.url`.

    Attributes:
        bodies: the completion requests it read, in order.
        headers: the headers of the last one.
        troubles: what happens to the next requests instead of an answer: a status, a pair of a status and headers, or
            "garbage", "no logprobs", "hang", "drop", "half", "no choices", None (nothing).
        dies_after: completions that it answers before it breaks off every connection; None for ever.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, manners: Manners = PLAIN) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.manners = manners
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.troubles: list[Any] = []
        self.dies_after: int | None = None
        self.hang = 0.5
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> CompletionsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    # ---- what it computes -------------------------------------------------------------------------------------

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """The model's log-probabilities after each token: [length, vocab]."""
        key = tuple(ids)
        if key not in self._rows:
            with self._lock:
                self._rows[key] = self.model(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
        return self._rows[key]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one completion request."""
        manners = self.manners
        unknown = set(body) - KNOWN_FIELDS
        if manners.strict and unknown:
            raise RefusedError(400, f"Unrecognized request argument supplied: {sorted(unknown)[0]}")
        if body.get("model") not in manners.models:
            raise RefusedError(404, f"The model {body.get('model')} does not exist")
        ids = self._read(body["prompt"])
        if manners.max_length is not None and len(ids) + 1 > manners.max_length:
            raise RefusedError(400, f"This model's maximum context length is {manners.max_length} tokens")
        asked = body.get("logprobs")
        if asked is not None and manners.logprobs == "refused":
            raise RefusedError(400, "logprobs are not supported by this model")
        if asked is not None and asked > manners.top and manners.refuses_deeper and "logprob_token_ids" not in body:
            raise RefusedError(400, f"Requested sample logprobs of {asked}, which is greater than max allowed")
        if body.get("echo") and manners.echo == "no":
            raise RefusedError(400, "Only no echo is supported")
        rows = self.logprobs(ids)
        stated = after_bias = rows[-1]
        if body.get("logit_bias") and manners.logit_bias is not None:
            bias = torch.zeros(len(stated))
            for token, value in body["logit_bias"].items():
                bias[int(token)] = max(-100.0, min(100.0, value))
            after_bias = stated + bias
            if manners.logit_bias == "biased":
                stated = after_bias.log_softmax(-1)
        chosen = int(after_bias.argmax())
        ends = chosen == self.tokenizer.eos_token_id
        if body.get("echo"):
            shift = 1 if manners.echo == "shifted" else 0  # each token with the distribution after it
            positions = [(ids[0], None)] + [(token, rows[i + shift]) for i, token in enumerate(ids[1:])]
        else:
            positions = []
        named = body.get("logprob_token_ids") if manners.named else None
        if not (ends and manners.hides_end):
            positions.append((chosen, stated))
        text = "" if ends else self.tokenizer.decode([chosen])
        choice: dict[str, Any] = {
            "index": 0, "text": text, "finish_reason": "stop" if ends else "length", "logprobs": None,
        }  # fmt: skip
        if asked is not None and manners.logprobs != "no":
            choice["logprobs"] = self._stated(positions, min(asked, manners.top), named, body)
        if manners.prompt_logprobs and body.get("prompt_logprobs"):
            choice["prompt_logprobs"] = [None] + [
                {
                    str(entry): {"logprob": float(rows[i][entry]), "rank": 1, "decoded_token": "?"}
                    for entry in [token, *rows[i].topk(min(body["prompt_logprobs"], manners.top)).indices.tolist()]
                }
                for i, token in enumerate(ids[1:])
            ]
        answer: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "model": "tiny", "choices": [choice]}
        if manners.counts:
            answer["usage"] = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        return answer

    def _read(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt)["input_ids"]
            ids = ids if self.manners.begin is None else [self.manners.begin, *ids]
            return [*ids, 7] if self.manners.extra_token else ids
        if not self.manners.token_ids:
            raise RefusedError(422, "prompt: Input should be a valid string")
        return list(prompt)

    def _stated(
        self, positions: list[tuple[int, torch.Tensor | None]], k: int, named: list[int] | None, body: dict[str, Any]
    ) -> dict[str, Any]:
        by_id = self.manners.names == "ids" and body.get("return_tokens_as_token_ids", False)
        only_chosen = self.manners.logprobs == "chosen"
        lists = []
        for token, row in positions:
            top = [] if row is None or only_chosen else row.topk(min(k, len(row))).indices.tolist()
            top = named if named is not None else top
            lists.append([token, *(entry for entry in top if entry != token)])
        rows = [row for _, row in positions]
        if self.manners.names == "chat":
            content = []
            for listed, row in zip(lists, rows, strict=True):
                entries = [
                    {"id": t, "token": self._name(t, False), "bytes": [], "logprob": float(row[t])}  # type: ignore[index]
                    for t in listed
                ]
                content.append({**entries[0], "top_logprobs": entries})
            return {"content": content}
        return {
            "tokens": [self._name(token, by_id) for token, _ in positions],
            "token_logprobs": [None if row is None else float(row[token]) for token, row in positions],
            "text_offset": [0] * len(positions),
            "top_logprobs": None
            if only_chosen
            else [
                None if row is None else {self._name(t, by_id): float(row[t]) for t in reversed(listed)}
                for listed, row in zip(lists, rows, strict=True)
            ],
        }

    def _name(self, token: int, by_id: bool) -> str:
        if by_id:
            return f"token_id:{token}"
        if self.manners.names == "entry":
            return str(self.tokenizer.convert_ids_to_tokens(token))
        return str(self.tokenizer.decode([token]))


def _handler(server: CompletionsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as with a real server
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path != "/v1/models":
                self._answer(404, {"detail": "Not Found"})
                return
            models = [{"id": name, "max_model_len": server.manners.max_length} for name in server.manners.models]
            self._answer(200, {"object": "list", "data": models})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers = dict(self.headers)
            if self.path != "/v1/completions":
                self._answer(404, {"detail": "Not Found"})
                return
            server.bodies.append(body)
            if server.dies_after is not None and len(server.bodies) > server.dies_after:
                self._break_off()
                return
            trouble = server.troubles.pop(0) if server.troubles else None
            if trouble is not None:
                self._trouble(trouble, body)
                return
            try:
                self._answer(200, server.complete(body))
            except RefusedError as refused:
                self._answer(refused.status, {"error": {"message": str(refused), "code": refused.status}})

        def _trouble(self, trouble: Any, body: dict[str, Any]) -> None:
            if isinstance(trouble, int):
                self._answer(trouble, {"error": {"message": "out of order"}})
            elif isinstance(trouble, tuple):
                self._answer(trouble[0], {"error": {"message": "slow down"}}, trouble[1])
            elif trouble == "drop":
                self._break_off()
            elif trouble == "hang":
                time.sleep(server.hang)
                self._break_off()
            elif trouble == "garbage":
                self._send(200, b"<html>Bad gateway</html>")
            elif trouble == "half":
                content = json.dumps(server.complete(body)).encode()
                self._send(200, content[: len(content) // 2])
            elif trouble == "no choices":
                self._answer(200, {"object": "error"})
            else:
                answer = server.complete(body)
                answer["choices"][0]["logprobs"] = None
                self._answer(200, answer)

        def _break_off(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            self._send(status, json.dumps(body).encode(), headers)

        def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return Handler
