"""`push_to_hub` against a stand-in for the hub: a server in this process that speaks the few calls an upload makes."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.hf_api import HfApi
from safetensors.torch import load

from lmcompose import compose
from lmcompose import saved as saved_module
from lmcompose.card import is_hub_id
from tests.compositions import randomise
from tests.tiny import tiny_model, tiny_tokenizer


class StandInHub(BaseHTTPRequestHandler):
    """Creates repositories and takes commits of regular files; `server.files` holds what was pushed."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer({"id": "me/composed", "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.tokens.add(self.headers.get("Authorization"))
        if self.path.endswith("/repos/create"):
            self._answer({"url": f"{server.address}/me/composed", "name": "me/composed"})
        elif self.path.endswith("/validate-yaml"):
            server.validated.append(json.loads(body)["content"])
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "header":
                    server.messages.append(entry["value"]["summary"])
            self._answer({"commitUrl": f"{server.address}/me/composed/commit/abc", "commitOid": "abc"})
        else:
            self._answer({"error": self.path}, 404)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), StandInHub)
    server.files, server.tokens, server.messages, server.validated = {}, set(), [], []
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(saved_module, "HfApi", lambda: HfApi(endpoint=server.address))
    yield server
    server.shutdown()
    server.server_close()


def test_push_uploads_the_composition_and_its_own_card(hub: Any) -> None:
    model = randomise(compose((tiny_model("llama"), tiny_tokenizer()), (tiny_model("gpt2", seed=1), tiny_tokenizer())))
    with pytest.warns(UserWarning, match=r"must name the members themselves, lmcompose\.load\('me/composed', "):
        address = model.push_to_hub("me/composed", token="secret", commit_message="First")
    assert "commit/abc" in address
    assert hub.tokens == {"Bearer secret"}
    assert hub.messages == ["First"]
    assert {"config.json", "model.safetensors", "README.md", "generation_config.json", "tokenizer.json"} <= set(
        hub.files
    )
    pushed = load(hub.files["model.safetensors"])
    assert pushed.keys() == dict(model.composition_parameters()).keys()
    assert all(torch.equal(pushed[name], parameter) for name, parameter in model.composition_parameters())
    card = hub.files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: lmcompose")
    assert "# composed" in card
    assert "| licence |" in card


def test_only_names_that_all_can_resolve_count_as_hub_ids() -> None:
    assert is_hub_id("owner/model-1.5b")
    assert not is_hub_id("a live LlamaForCausalLM")
    assert not is_hub_id("models/sub/folder")
    assert not is_hub_id("tests/calm")  # a folder here
