"""lmcompose makes one language model out of several frozen ones.

>>> import lmcompose
>>> model = lmcompose.compose(anchor="models/large", augmenting="models/small")  # doctest: +SKIP

After `import lmcompose`, a saved composition also loads by `AutoModelForCausalLM.from_pretrained(folder)`.
"""

from importlib.metadata import PackageNotFoundError, version

from transformers import AutoConfig, AutoModelForCausalLM

from lmcompose.calm.compose import compose, plan_composition
from lmcompose.calm.config import CalmConfig
from lmcompose.calm.model import CalmForCausalLM

AutoConfig.register(CalmConfig.model_type, CalmConfig, exist_ok=True)
AutoModelForCausalLM.register(CalmConfig, CalmForCausalLM, exist_ok=True)

load = CalmForCausalLM.from_pretrained

try:
    __version__ = version("lmcompose")
except PackageNotFoundError:  # a source tree that is on the path but not installed
    __version__ = "0.0.0"

__all__ = ["CalmConfig", "CalmForCausalLM", "__version__", "compose", "load", "plan_composition"]
