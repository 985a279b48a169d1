"""lmcompose makes one language model out of several frozen ones.

>>> import lmcompose
>>> model = lmcompose.compose(anchor="models/large", augmenting="models/small")  # doctest: +SKIP

After `import lmcompose`, a saved composition also loads by `AutoModelForCausalLM.from_pretrained(folder)`.
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmcompose import errors

if TYPE_CHECKING:
    from lmcompose.calm.compose import compose, plan_composition
    from lmcompose.calm.config import CalmConfig
    from lmcompose.calm.extend import extend
    from lmcompose.calm.model import CalmForCausalLM
    from lmcompose.decoding.speculative import Speculation
    from lmcompose.kinds import load
    from lmcompose.logits.compose import combine, plan_logits, proxy_tune
    from lmcompose.logits.config import LogitConfig
    from lmcompose.logits.formula import parameter, term
    from lmcompose.logits.model import LogitForCausalLM

_HOMES = {
    "CalmConfig": "lmcompose.calm.config",
    "CalmForCausalLM": "lmcompose.calm.model",
    "LogitConfig": "lmcompose.logits.config",
    "LogitForCausalLM": "lmcompose.logits.model",
    "Speculation": "lmcompose.decoding.speculative",
    "combine": "lmcompose.logits.compose",
    "compose": "lmcompose.calm.compose",
    "extend": "lmcompose.calm.extend",
    "load": "lmcompose.kinds",
    "parameter": "lmcompose.logits.formula",
    "plan_composition": "lmcompose.calm.compose",
    "plan_logits": "lmcompose.logits.compose",
    "proxy_tune": "lmcompose.logits.compose",
    "term": "lmcompose.logits.formula",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lmcompose' has no attribute '{name}'")


# transformers takes seconds to import. The `lmcompose` command answers --help at once and imports models when a verb
# needs them; everyone else has the Auto classes registered from the start.
if Path(sys.argv[0] if sys.argv else "").name != "lmcompose":
    import_module("lmcompose.kinds")

try:
    __version__ = version("lmcompose")
except PackageNotFoundError:  # a source tree that is on the path but not installed
    __version__ = "0.0.0"

__all__ = [
    "CalmConfig",
    "CalmForCausalLM",
    "LogitConfig",
    "LogitForCausalLM",
    "Speculation",
    "__version__",
    "combine",
    "compose",
    "errors",
    "extend",
    "load",
    "parameter",
    "plan_composition",
    "plan_logits",
    "proxy_tune",
    "term",
]
