"""Why an arm cannot be run, as far as configurations, tokenizers and data tell: said before anything is trained."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmcompose.alignment.vocab_maps import MIN_COVERAGE
from lmcompose.alignment.vocabulary import check_same_tokenizer
from lmcompose.architecture import meta_model
from lmcompose.calm.compose import align_members, source_tokenizer
from lmcompose.calm.config import ANCHOR
from lmcompose.errors import ConfigurationError, DataError, LmcomposeError
from lmcompose.experiments.ablations.arms import arm_named
from lmcompose.experiments.ablations.recipes import arm_recipe
from lmcompose.experiments.ablations.setting import HELD_OUT, Setting
from lmcompose.experiments.ablations.untrained import formula_of, roles_of
from lmcompose.experiments.ablations.weights import check_same_shapes
from lmcompose.logits.compose import plan_logits
from lmcompose.logits.members import map_vocabularies, tokenizers_of
from lmcompose.places import read_model_config, read_tokenizer
from lmcompose.training.arguments import micro_batch
from lmcompose.training.data import encode_source
from lmcompose.training.encoding import Example
from lmcompose.training.models import RecipeModels
from lmcompose.training.plan import plan_training
from lmcompose.training.recipe import DataSource
from lmcompose.training.tuning import plan_tuned_anchor

Sets = Mapping[str, list[list[Example]]]


def refusal(name: str, setting: Setting, sets: Sets, folder: Path) -> str | None:
    """Why the arm `name` cannot be run, in words; None where nothing speaks against it.

    Args:
        sets: the held-out documents, by set.
        folder: of the runs.
    """
    try:
        check = _CHECKS.get(name)
        if check is not None:
            check(setting, sets)
        if arm_named(name).family == "composition" and name in ("vanilla", "encoder"):
            _check_composition(name, setting, folder)
        if arm_named(name).family == "tuned":
            recipe = arm_recipe(setting, name, setting.recipe.seed, folder / name)
            plan_tuned_anchor(recipe, setting.models, folder, matched(setting, folder) if name == "lora" else None)
    except LmcomposeError as error:
        return str(error)
    return None


def matched(setting: Setting, folder: Path) -> int:
    """How many parameters the recipe's composition trains, which those of LoRA are to match."""
    models, recipe = setting.models, setting.recipe
    composition = models.plan()
    rows = micro_batch(recipe.training)
    plan = plan_training(recipe, composition, models.places(composition), folder, rows, models.kept_bytes())
    return plan.trained_parameters


def _check_composition(name: str, setting: Setting, folder: Path) -> None:
    """What `compose` would refuse for another augmenting model, or another way of reading."""
    recipe = arm_recipe(setting, name, setting.recipe.seed, folder / name)
    config = RecipeModels.located(recipe, setting.base).plan()
    references = config.references()
    tokenizers = {
        role: source_tokenizer(reference.name_or_path, reference, recipe.trust_remote_code)
        for role, reference in references.items()
    }
    config.alignment = align_members(references, tokenizers, recipe.alignment)
    config.check()


def _needs_anchor(setting: Setting, sets: Sets) -> None:
    if setting.anchor is None:
        raise ConfigurationError("the recipe extends a saved composition, and this takes a plain anchor.")


def _needs_vanilla(setting: Setting, sets: Sets) -> None:
    missing = [name for name in setting.augmenting if name not in setting.vanilla]
    if missing:
        raise ConfigurationError(
            f"nothing says what {' and '.join(missing)} was before its domain training: give --vanilla, or "
            "ablations: {vanilla: ...} in the recipe."
        )


def _needs_prompts(setting: Setting, sets: Sets) -> None:
    sources = [*setting.recipe.data, *setting.held_out_sources()]
    plain = [source.label for source in sources if source.kind == "text"]
    if plain:
        raise DataError(
            f"{', '.join(dict.fromkeys(plain))} is plain text without prompts, and this arm has m_A read the prompt "
            "alone. Give data of kind prompt_completion or chat."
        )


def _needs_questions(setting: Setting, sets: Sets) -> None:
    _needs_anchor(setting, sets)
    others = [source.label for source in setting.held_out_sources() if source.kind != "prompt_completion"]
    if others:
        raise DataError(
            f"{', '.join(dict.fromkeys(others))} has no prompt that m_A could answer. Give held-out data of kind "
            "prompt_completion."
        )
    if len(setting.augmenting) > 1:
        raise ConfigurationError("there are several augmenting models, and one of them is to answer.")


def _needs_domain_data(setting: Setting, sets: Sets) -> None:
    if not setting.options.domain_data:
        raise ConfigurationError(
            "nothing says what the domain data are: give --domain-data, or ablations: {domain_data: [...]} in the "
            "recipe."
        )
    _refuse_shared(setting, setting.options.domain_data, HELD_OUT, sets[HELD_OUT], "the anchor would be tuned on them")


def check_apart(setting: Setting, sets: Sets) -> None:
    """Refuse composition data in which a held-out document stands: every arm would be trained on what it is scored on.

    Of a fraction that is held out nothing is said, since it was taken out of the data.

    Raises:
        DataError: naming the file.
    """
    validation = setting.recipe.validation
    if validation is not None and validation.data:
        for name, documents in sets.items():
            _refuse_shared(setting, setting.recipe.data, name, documents, "the arms would be trained on them")


def _refuse_shared(
    setting: Setting, sources: Sequence[DataSource], name: str, documents: list[list[Example]], what: str
) -> None:
    held = {_key(document) for document in documents}
    length = setting.recipe.training.max_length
    for source in sources:
        both = sum(_key(each) in held for each in encode_source(source, setting.tokenizer, setting.base, length))
        if both:
            where = "held-out documents" if name == HELD_OUT else f"documents of '{name}'"
            raise DataError(
                f"{source.label} holds {both} of the {where}, so that {what}. "
                "Take them out of it, or hold other documents out (validation: {data: [...]})."
            )


def _key(document: list[Example]) -> bytes:
    return b"".join(example.input_ids.tobytes() for example in document)


def _shares_vocabulary(name: str) -> Callable[[Setting, Sets], None]:
    def check(setting: Setting, sets: Sets) -> None:
        _needs_anchor(setting, sets)
        if name == "proxy":
            _needs_vanilla(setting, sets)
        members = roles_of(name, setting)
        formula, parameters = formula_of(name, setting)
        options = setting.loading(members)
        options.pop("dtype")
        config = plan_logits(formula, members, parameters=parameters, **options)
        references = config.references()
        tokenizers = tokenizers_of(members, references, setting.recipe.trust_remote_code)
        map_vocabularies(tokenizers, references, MIN_COVERAGE)

    return check


def _shares_shapes(name: str) -> Callable[[Setting, Sets], None]:
    def check(setting: Setting, sets: Sets) -> None:
        _needs_anchor(setting, sets)
        if name == "task_arithmetic":
            _needs_vanilla(setting, sets)
        if setting.recipe.quantizations():
            raise ConfigurationError("weights that are quantised cannot be added.")
        places = {**setting.models.sources}
        if name == "task_arithmetic":
            places |= {f"vanilla {role}": place for role, place in setting.vanilla.items()}
        trust = setting.recipe.trust_remote_code
        check_same_shapes(
            {
                role: meta_model(read_model_config(place, None, trust), trust).state_dict()
                for role, place in places.items()
            }
        )
        for role, place in places.items():
            own = read_tokenizer(place, None, trust)
            if role != ANCHOR and own is not None:
                check_same_tokenizer(setting.tokenizer, own, places[ANCHOR], place)

    return check


_CHECKS: dict[str, Callable[[Setting, Sets], None]] = {
    "vanilla": _needs_vanilla,
    "encoder": _needs_prompts,
    "finetuned_domain": _needs_domain_data,
    "ensemble": _shares_vocabulary("ensemble"),
    "proxy": _shares_vocabulary("proxy"),
    "average": _shares_shapes("average"),
    "task_arithmetic": _shares_shapes("task_arithmetic"),
    "pipeline": _needs_questions,
}
