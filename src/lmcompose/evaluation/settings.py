"""What a score depends on beside the model and the data. This file runs nothing and knows no task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmcompose.errors import ConfigurationError
from lmcompose.kinds import read_composition
from lmcompose.loading import Source, plan_member, source_name
from lmcompose.logits.config import LogitConfig, check_weights
from lmcompose.logits.steps import check_value
from lmcompose.places import read_tokenizer
from lmcompose.saved import kind_of


@dataclass(frozen=True)
class Settings:
    """What a score depends on beside the model and the data.

    shots: examples before each question; None is the task's own number. A task whose own number is 0 keeps it.
    limit: the first so many examples of each task; None is all.
    chat: wrap the prompt in the model's chat template.
    max_new_tokens: at most so many for an answer; None is the task's own number.
    seed: draws the shots, and what a task samples.
    dtype: of the weights; None keeps what was saved.
    alpha: the parameter of that name of those models that are logit compositions with one; None keeps what was saved.
    samples: programs for each problem, of the tasks whose answers are run.
    temperature: at which these are drawn; 0 decodes greedily.
    pass_at: each k of the pass@k of these tasks.
    """

    shots: int | None = None
    limit: int | None = None
    chat: bool = False
    max_new_tokens: int | None = None
    seed: int = 1234
    dtype: str | None = None
    alpha: float | None = None
    samples: int = 1
    temperature: float = 0.0
    pass_at: Sequence[int] = (1,)

    def check(self, programs: bool) -> None:
        """Refuse what cannot be, before anything is read.

        Args:
            programs: whether there is a task whose answers are run.

        Raises:
            ConfigurationError: a number that cannot be, or settings of programs where no task has any.
        """
        if self.samples < 1:
            raise ConfigurationError(f"samples={self.samples} has to be 1 or more.")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigurationError(f"The temperature {self.temperature} has to be 0, which is greedy, or above.")
        if not self.pass_at or min(self.pass_at) < 1 or max(self.pass_at) > self.samples:
            raise ConfigurationError(
                f"pass@k for k = {', '.join(map(str, self.pass_at)) or 'none'} is not defined for {self.samples} "
                f"programs for each problem. Each k is from 1 to that number: --samples draws more."
            )
        if self.samples > 1 and self.temperature == 0:
            raise ConfigurationError(
                f"{self.samples} programs that are decoded greedily are all the same. Give a --temperature, such as "
                "0.8, or one sample."
            )
        if not programs and (self.samples, self.temperature) != (1, 0):
            raise ConfigurationError(
                "--samples and --temperature are for the tasks whose answers are run, humaneval and mbpp, and none of "
                "them is named. Leave them out."
            )

    def for_task(self, programs: bool, alpha: float | None) -> dict[str, Any]:
        """The settings that the answers of one model to one task depend on; None stands for those that do not count."""
        return {
            "shots": self.shots,
            "limit": self.limit,
            "chat": self.chat,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "dtype": self.dtype,
            "alpha": alpha,
            "samples": self.samples if programs else None,
            "temperature": self.temperature if programs else None,
        }


def alphas(models: Mapping[str, Source], alpha: float | None, **options: Any) -> dict[str, float | None]:
    """The alpha of each model: `alpha` for the logit compositions that have that parameter, and None for all others.

    Args:
        options: `trust_remote_code` and `use_safetensors`, with which the models are loaded later.

    Raises:
        ConfigurationError: no model has it, or it is no value that its formula can have; no model has been loaded then.
    """
    if alpha is None:
        return dict.fromkeys(models)
    check_value("alpha", alpha)
    found: dict[str, float | None] = {}
    for label, source in models.items():
        config = _logit_config(source, **options)
        found[label] = alpha if config is not None and "alpha" in config.parsed().parameters else None
        if config is not None and found[label] is not None:
            check_weights(config.parsed(), {**(config.parameters or {}), "alpha": alpha})
    if not any(value is not None for value in found.values()):
        raise ConfigurationError(
            f"alpha={alpha:g} has nothing to act on: of {', '.join(found)}, none is a logit composition whose formula "
            "has the parameter alpha. Leave --alpha out."
        )
    return found


def check_chat(models: Mapping[str, Source], trust_remote_code: bool = False) -> None:
    """Refuse models without a chat template, as far as that can be known before they are loaded.

    Raises:
        ConfigurationError: the tokenizer of one has none.
    """
    for label, source in models.items():
        if isinstance(source, tuple):
            tokenizer: Any = source[1]
        elif isinstance(source, str | Path):
            tokenizer = read_tokenizer(source, trust_remote_code=trust_remote_code)
        else:
            tokenizer = getattr(source, "tokenizer", None)
        if tokenizer is not None and not tokenizer.chat_template:
            raise ConfigurationError(
                f"'{label}' ({source_name(source)}) has no chat template, so it cannot be evaluated with --chat. Leave "
                "--chat out, or save a chat_template.jinja into its folder."
            )


def _logit_config(source: Source, **options: Any) -> LogitConfig | None:
    live = source[0] if isinstance(source, tuple) else source
    if not hasattr(live, "config"):
        reference = plan_member(live, "evaluation", **options)
        if kind_of(reference) != "composition":
            return None
        config: Any = read_composition(reference.name_or_path)
    else:
        config = live.config
    return config if isinstance(config, LogitConfig) else None
