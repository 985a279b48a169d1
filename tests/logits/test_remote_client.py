"""The client against a server that fails in every way that servers do."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lmcompose.errors import ConfigurationError, LmcomposeError, RemoteError
from lmcompose.logits.remote.client import Client
from tests.logits.remote_server import CompletionsServer
from tests.tiny import tiny_model, tiny_tokenizer

BODY = {"model": "tiny", "prompt": "w1 w2", "max_tokens": 1, "temperature": 0, "logprobs": 2}


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    with CompletionsServer(tiny_model("llama"), tiny_tokenizer()) as server:
        yield server


def client(server: CompletionsServer, **options: object) -> Client:
    return Client(server.url, **{"backoff": 0.01, "timeout": 5.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    ["{}", "{}/", "{}/v1", "{}/v1/", "{}/v1/completions", "{}/v1/chat/completions", "{}/v1/models"],
)
def test_every_way_to_write_the_address_reaches_the_api(server: CompletionsServer, url: str) -> None:
    found = Client(url.format(server.url))
    assert found.get("/models")["data"][0]["id"] == "tiny"
    assert found.url == f"{server.url}/v1"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://h:port/v1", "http://a:b@h"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Client(url)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retries": -1}, {"backoff": -1}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Client("http://host", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("trouble", [500, 502, 503, 429, 408, "drop", "garbage", "half"])
def test_passing_troubles_are_waited_out(server: CompletionsServer, trouble: object) -> None:
    server.troubles = [trouble, trouble]
    asked = client(server, retries=2)
    plain = asked.post("/completions", BODY)
    assert plain["choices"][0]["logprobs"]["tokens"]
    assert asked.retried == 2
    assert len(server.bodies) >= 3


def test_one_trouble_too_many_is_an_error_with_the_servers_words(server: CompletionsServer) -> None:
    server.troubles = [503] * 3
    with pytest.raises(RemoteError, match=r"status 503: 'out of order'\. \(3 attempts\)") as caught:
        client(server, retries=2).post("/completions", BODY)
    assert caught.value.status == 503
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value, LmcomposeError)


def test_a_refusal_is_not_tried_again(server: CompletionsServer) -> None:
    with pytest.raises(RemoteError, match="does not exist") as caught:
        client(server).post("/completions", BODY | {"model": "other"})
    assert caught.value.status == 404
    assert len(server.bodies) == 1


def test_retry_after_is_waited_for(server: CompletionsServer) -> None:
    server.troubles = [(429, {"Retry-After": "0.3"})]
    started = time.perf_counter()
    client(server).post("/completions", BODY)
    assert time.perf_counter() - started >= 0.3


def test_retry_after_can_be_a_date(server: CompletionsServer) -> None:
    server.troubles = [(503, {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)})]
    with pytest.raises(RemoteError, match=r"asks to wait for 3\d{3} seconds"):
        client(server).post("/completions", BODY)
    assert len(server.bodies) == 1


def test_a_wait_without_sense_is_as_good_as_none(server: CompletionsServer) -> None:
    server.troubles = [(429, {"Retry-After": "soon"})]
    client(server).post("/completions", BODY)
    assert len(server.bodies) == 2


def test_a_silent_server_is_given_up(server: CompletionsServer) -> None:
    server.troubles, server.hang = ["hang"] * 2, 1.0
    with pytest.raises(RemoteError, match=r"within 0\.1 seconds \(2 attempts\)") as caught:
        client(server, timeout=0.1, retries=1).post("/completions", BODY)
    assert caught.value.status is None


def test_a_server_that_wakes_up_is_not(server: CompletionsServer) -> None:
    server.troubles, server.hang = ["hang"], 0.5
    assert client(server, timeout=0.1, retries=1).post("/completions", BODY)["choices"]


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RemoteError, match=r"could not be reached.*Check that the server runs"):
        Client(url, retries=1, backoff=0.01).get("/models")


def test_a_connection_that_was_closed_while_idle_costs_no_wait(server: CompletionsServer) -> None:
    asked = client(server, retries=0)
    asked.get("/models")
    assert asked._connection is not None
    assert asked._connection.sock is not None
    asked._connection.sock.shutdown(socket.SHUT_RDWR)
    assert asked.post("/completions", BODY)["choices"]
    assert asked.retried == 0


def test_one_connection_serves_many_requests(server: CompletionsServer) -> None:
    asked = client(server)
    asked.post("/completions", BODY)
    first = asked._connection
    assert first is not None
    sock = first.sock
    asked.post("/completions", BODY)
    assert asked._connection is first
    assert first.sock is sock


def test_the_key_is_sent_and_never_shown(server: CompletionsServer) -> None:
    asked = client(server, api_key="sk-secret", retries=0)
    asked.post("/completions", BODY)
    assert server.headers["Authorization"] == "Bearer sk-secret"
    server.troubles = [401]
    with pytest.raises(RemoteError, match="api_key=") as caught:
        asked.post("/completions", BODY)
    assert "sk-secret" not in str(caught.value) + repr(asked)
