"""The arms that train nothing: models joined at their scores, by their weights, or by text; and one chosen for each."""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedModel

from lmcompose.architecture import position_limit
from lmcompose.calm.config import ANCHOR
from lmcompose.experiments.ablations.held_out import Documents, bits, in_tokens_of
from lmcompose.experiments.ablations.pipeline import answers, prompt_of, with_answers
from lmcompose.experiments.ablations.setting import Setting
from lmcompose.experiments.ablations.weights import averaged, task_arithmetic
from lmcompose.experiments.stages import Report
from lmcompose.kinds import load
from lmcompose.logits.compose import combine

Scorer = Callable[[str, Documents, Report], list[float]]
"""(name of the set, its documents in tokens of the anchor, report) -> bits by document."""

Keep = Callable[[str, Callable[[Report], Any]], Any]
"""(name, make) -> what `make` gave, now or in an earlier run."""


def of_model(model: PreTrainedModel) -> Scorer:
    """The scorer of a model that reads the anchor's tokens."""
    return lambda name, documents, report: bits(model, documents, report=report)


def anchor_alone(setting: Setting) -> Scorer:
    """The anchor by itself; of a recipe that extends a composition, that composition's."""
    if setting.anchor is not None:
        return of_model(setting.member(ANCHOR).model)
    composition = load(str(setting.models.extends))

    def score(name: str, documents: Documents, report: Report) -> list[float]:
        with composition.disable():
            return bits(composition, documents, report=report)

    return score


def augmenting_alone(setting: Setting, role: str) -> Scorer:
    """An augmenting model by itself, in tokens of its own."""
    member = setting.member(role)
    own = member.tokenizer or setting.tokenizer

    def score(name: str, documents: Documents, report: Report) -> list[float]:
        return bits(member.model, in_tokens_of(own, documents, setting.tokenizer), report=report)

    return score


def roles_of(name: str, setting: Setting) -> dict[str, str]:
    """Role -> place of the members of a logit composition, the anchor first."""
    members = dict(setting.models.sources)
    if name == "proxy":
        members |= {_before(role): place for role, place in setting.vanilla.items()}
    return members


def formula_of(name: str, setting: Setting) -> tuple[str, dict[str, float]]:
    """The formula of a logit composition over `roles_of`, and its parameters."""
    names = list(setting.augmenting)
    if name == "proxy":
        differences = " + ".join(f"alpha * ({role} - {_before(role)})" for role in names)
        return f"{ANCHOR} + {differences}", {"alpha": setting.options.alpha}
    share, rest = setting.weight / len(names), 1 - setting.weight
    shares = " + ".join(f"share_each * {role}" for role in names)
    return f"share_rest * {ANCHOR} + {shares}", {"share_rest": rest, "share_each": share}


def _before(role: str) -> str:
    return f"{role}_before"


def by_scores(name: str, setting: Setting) -> Scorer:
    """A logit ensemble, or proxy-tuning."""
    members = roles_of(name, setting)
    formula, parameters = formula_of(name, setting)
    return of_model(combine(formula, members, parameters=parameters, **setting.loading(members)))


def by_weights(name: str, setting: Setting) -> Scorer:
    """The anchor with the average of all weights, or with what the augmenting models learned added to its own."""
    model = setting.member(ANCHOR).model
    states = {role: setting.member(role).model.state_dict() for role in setting.augmenting}
    ours = model.state_dict()
    if name == "average":
        share = setting.weight / len(states)
        joined = averaged([ours, *states.values()], [1 - setting.weight, *(share for _ in states)])
    else:
        before = {role: setting.member(role, place).model.state_dict() for role, place in setting.vanilla.items()}
        joined = task_arithmetic(ours, [(states[role], before[role]) for role in states], setting.options.scale)
    model.load_state_dict(joined)
    return of_model(model)


def by_text(setting: Setting, keep: Keep) -> Scorer:
    """The anchor, which is given the augmenting model's answer in its prompt.

    keep: of the answers, which take the longest.
    """
    anchor, options = setting.member(ANCHOR).model, setting.options.pipeline
    (role,) = setting.augmenting
    limit = position_limit(anchor)

    def score(name: str, documents: Documents, report: Report) -> list[float]:
        prompts = [prompt_of(example, setting.tokenizer) for document in documents for example in document]
        given = keep(
            f"answers, {name}", lambda told: answers(setting.member(role), prompts, options.new_tokens, report=told)
        )
        asked = with_answers(documents, given, options.template, setting.tokenizer, limit)
        return bits(anchor, asked, report=report)

    return score


UNTRAINED: Mapping[str, Callable[[str, Setting], Scorer]] = {
    "ensemble": by_scores,
    "proxy": by_scores,
    "average": by_weights,
    "task_arithmetic": by_weights,
}
"""What makes the scorer of an arm, by its name."""
