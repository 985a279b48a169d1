"""JSON over HTTP to one server, with time-outs, and retries where another attempt may help.

One connection is kept open, since a token costs a request. This file knows no models and no completions, and no
proxies.
"""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from lmcompose.errors import ConfigurationError, RemoteError

ENDPOINTS = ("/chat/completions", "/completions", "/models")
SHOWN = 300
"""Characters of a server's answer that a message quotes."""


class Client:
    """Speaks to the API at `url`.

    Args:
        url: of the server or of its API: `http://host:8000`, `https://host/v1`. A bare server gets `/v1` added.
        api_key: sent as a bearer token, and never shown.
        timeout: seconds to wait for the server's next sign of life.
        retries: how often to try again after a lost connection, a time-out, garbled JSON, or status 408, 429 or 5xx.
        backoff: seconds before the first retry; each further one waits twice as long. A Retry-After header goes first.
        max_wait: the longest that a retry waits; a server that asks for more is not asked again.

    Attributes:
        requests: requests that were sent, with the repeated ones.
        retried: those among them that were repeats.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        backoff: float = 0.5,
        max_wait: float = 60.0,
    ) -> None:
        parts = urlsplit(url if isinstance(url, str) else "")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigurationError(f"'{url}' is no address of an API. Give one such as 'http://localhost:8000/v1'.")
        if parts.username is not None or parts.query:
            raise ConfigurationError("Give the address of the API without a user name or a query, and pass api_key=...")
        if timeout <= 0 or retries < 0 or backoff < 0 or max_wait < 0:
            raise ConfigurationError(
                f"timeout = {timeout} must be above 0 seconds, and retries = {retries}, backoff = {backoff} and "
                f"max_wait = {max_wait} cannot be negative."
            )
        path = parts.path.rstrip("/")
        for ending in ENDPOINTS:
            path = path.removesuffix(ending)
        self.path = path or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self.path}"
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.max_wait = max_wait
        self.requests = 0
        self.retried = 0
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        self._api_key = api_key
        self._connection: http.client.HTTPConnection | None = None

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`, which begins with a slash and is counted from the API's own.

        Raises:
            RemoteError: see `post`.
        """
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that the server answers to `body`.

        Raises:
            RemoteError: the server refused, or could not be reached, or gave no JSON, at the last attempt too; `status`
                says what it answered.
        """
        return self._request("POST", path, json.dumps(body).encode())

    @contextmanager
    def retrying(self, at_most: int) -> Iterator[None]:
        """Within the block, try again `at_most` times."""
        before, self.retries = self.retries, min(self.retries, at_most)
        try:
            yield
        finally:
            self.retries = before

    def close(self) -> None:
        """Let go of the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        for attempt in range(self.retries + 1):
            wait, status = self.backoff * 2**attempt, None
            try:
                status, headers, content = self._exchange(method, path, body)
            except TimeoutError:
                problem = f"did not answer within {self.timeout:g} seconds"
            except (OSError, http.client.HTTPException) as error:
                problem = f"could not be reached, or broke off ({type(error).__name__}: {error})"
            else:
                if status == 200:
                    answer = _json_object(content)
                    if answer is not None:
                        return answer
                    problem = f"answered with something else than a JSON object: {_quoted(content)}"
                else:
                    problem = f"answered with status {status}: {_message(content)}"
                    if status not in (408, 429) and (status < 500 or status == 501):
                        raise RemoteError(f"{self.url}{path} {problem}{_advice(status)}", status=status)
                    asked = _retry_after(headers.get("Retry-After"))
                    wait = wait if asked is None else asked
                    if asked is not None and asked > self.max_wait:
                        raise RemoteError(
                            f"{self.url}{path} {problem} It asks to wait for {asked:.0f} seconds, and max_wait is "
                            f"{self.max_wait:g}. Try again later, or allow a longer wait.",
                            status=status,
                        )
            if attempt < self.retries:
                self.retried += 1
                time.sleep(min(wait, self.max_wait))
        raise RemoteError(
            f"{self.url}{path} {problem} ({self.retries + 1} attempts). Check that the server runs and that it has not "
            "run out of memory, or allow more time with timeout= and retries=.",
            status=status,
        )

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, Any, bytes]:
        """Send one request and read the whole answer: status, headers, content."""
        reused = self._connection is not None
        try:
            return self._send(method, path, body)
        except (ConnectionError, http.client.BadStatusLine):
            if not reused:
                raise
            # a server may close a connection that was idle, which says nothing about how it is
            return self._send(method, path, body)

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, Any, bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "lmcompose"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self.timeout)
        self.requests += 1
        try:
            self._connection.request(method, self.path + path, body, headers)
            response = self._connection.getresponse()
            return response.status, response.headers, response.read()
        except BaseException:  # half of an answer may be left in the connection, also after a Ctrl-C
            self.close()
            raise


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks to wait: it is a number of them, or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _message(content: bytes) -> str:
    """The server's own words, wherever in its error object they are."""
    answer: Any = _json_object(content)
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and key in answer:
            answer = answer[key]
    return _quoted(json.dumps(answer).encode() if isinstance(answer, (dict, list)) else str(answer or "").encode())


def _quoted(content: bytes) -> str:
    text = " ".join(content.decode(errors="replace").split())
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return f"'{shown}'." if shown else "(nothing)."


def _advice(status: int) -> str:
    if status in (401, 403):
        return " Pass the server's key with api_key=..."
    if status == 404:
        return " Check the address: it is that of an OpenAI-compatible API, such as http://localhost:8000/v1."
    return ""
