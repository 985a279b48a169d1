"""Logit composition whose base is behind an API: `RemoteBase` and `remote_generate`."""

from lmcompose.logits.remote.base import RemoteBase
from lmcompose.logits.remote.capabilities import Capabilities
from lmcompose.logits.remote.generate import remote_generate
from lmcompose.logits.remote.results import Certificate, RemoteResult, RemoteText, RemoteToken

__all__ = [
    "Capabilities",
    "Certificate",
    "RemoteBase",
    "RemoteResult",
    "RemoteText",
    "RemoteToken",
    "remote_generate",
]
