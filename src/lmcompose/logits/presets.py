"""The published methods that are weighted sums of scores, each with its formula, its mask and its default values.

A preset is data: what a user would otherwise write down as a formula. This file knows no models and no tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.logits.arithmetic import Plausibility


@dataclass(frozen=True)
class Preset:
    """One published method.

    Attributes:
        formula: over the roles and the parameters (see `formula.parse`).
        roles: what each member is, by role. The leader comes first: its prompt is the one that `generate` is given.
        source: the paper, and where in it the formula stands.
        parameters: the paper's default value of each parameter.
        plausibility: which tokens may be chosen at all, if not all of them.
        scores: what is added up, "logits" or "logprobs".
    """

    formula: str
    roles: Mapping[str, str]
    source: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    plausibility: Plausibility | None = None
    scores: str = "logits"


_BASE = "the strong model that is not tuned"
_EXPERT = "the small model, tuned"
_ANTIEXPERT = "the small model, not tuned"

PRESETS: Mapping[str, Preset] = {
    "proxy_tuning": Preset(
        formula="base + alpha * (expert - antiexpert)",
        parameters={"alpha": 1.0},
        roles={"base": _BASE, "expert": _EXPERT, "antiexpert": _ANTIEXPERT},
        source="Proxy-tuning (Liu et al. 2024, arXiv 2401.08565), equation 1",
    ),
    "expert_only": Preset(
        formula="base + alpha * expert",
        parameters={"alpha": 1.0},
        roles={"base": _BASE, "expert": _EXPERT},
        source="No method of its own: proxy-tuning without the antiexpert, to compare with",
    ),
    "dexperts": Preset(
        formula="base + alpha * (expert - antiexpert)",
        parameters={"alpha": 2.0},
        plausibility=Plausibility("base", "top_p", 0.9),
        roles={
            "base": "the model to steer",
            "expert": "a model tuned on text with the wanted attribute",
            "antiexpert": "a model tuned on text with the unwanted attribute",
        },
        source="DExperts (Liu et al. 2021, arXiv 2105.03023), section 2; alpha and top_p as for detoxification",
    ),
    "contrastive": Preset(
        formula="expert - amateur",
        plausibility=Plausibility("expert", "ratio", 0.1),
        scores="logprobs",
        roles={
            "expert": "a large model",
            "amateur": "a small model of the same family; the paper gives a GPT-2 amateur the temperature 0.5",
        },
        source="Contrastive decoding (Li et al. 2022, arXiv 2210.15097), section 3; the mask is equation 2",
    ),
    "context_aware": Preset(
        formula="(1 + alpha) * with_context - alpha * without_context",
        parameters={"alpha": 0.5},
        roles={"with_context": "the model, given the context", "without_context": "the same model, not given it"},
        source="Context-aware decoding (Shi et al. 2023, arXiv 2305.14739), section 2",
    ),
    "guidance": Preset(
        formula="unconditional + gamma * (conditional - unconditional)",
        parameters={"gamma": 1.5},
        scores="logprobs",
        roles={
            "conditional": "the model, given the prompt",
            "unconditional": "the same model, without the prompt or with a negative one",
        },
        source="Classifier-free guidance (Sanchez et al. 2023, arXiv 2306.17806), section 2",
    ),
    "debias": Preset(
        formula="(1 + alpha) * base - alpha * biased",
        parameters={"alpha": 1.0},
        plausibility=Plausibility("base", "ratio", 0.1),
        roles={
            "base": "the model, given the input",
            "biased": "the same model, given a distorted input or none: what is left is its bias",
        },
        source="Visual contrastive decoding (Leng et al. 2023, arXiv 2311.16922), section 3; likewise visual debias "
        "decoding (Zhang et al. 2024, arXiv 2403.05262)",
    ),
}


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ConfigurationError: there is none; the message names the nearest.
    """
    if name not in PRESETS:
        raise ConfigurationError(
            f"There is no preset '{name}'. The presets are {', '.join(PRESETS)}.{nearest(str(name), PRESETS)}"
        )
    return PRESETS[name]
