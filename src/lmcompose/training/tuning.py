"""The anchor of a recipe tuned by itself, whole or by LoRA: what a composition is to be compared with.

Everything but what learns is the recipe's: the data and their order, the optimizer and its schedule, the seed, the
checkpoints. A whole model learns in float32, since steps of AdamW are too small for bfloat16's three digits; where the
recipe's models are bfloat16 its products are computed in that (autocast). The model that the recipe names stays as it
is where it is.

    OUTPUT/model/      the tuned model, or the adapter, with the tokenizer; the rest as in `run.py`
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lmcompose.adapters import INSTALL_PEFT, adapter_source
from lmcompose.architecture import hook_head
from lmcompose.calm.config import ANCHOR
from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError
from lmcompose.folders import atomic_folder
from lmcompose.loading import Member, load_member, plan_member
from lmcompose.memory import as_count
from lmcompose.recipe import read_recipe
from lmcompose.reference import MemberReference
from lmcompose.training.arguments import early_stopping, micro_batch
from lmcompose.training.data import check_sources, prepare_data
from lmcompose.training.fit import Run, Say, fit
from lmcompose.training.lora import matching_rank, with_lora
from lmcompose.training.models import RecipeModels
from lmcompose.training.optimizers import MUON, check_optimizer, optimizer_arguments
from lmcompose.training.ordered import OrderedTrainer
from lmcompose.training.packing import Collator, check_packing
from lmcompose.training.plan import TrainingPlan, plan_tuning, refuse_impossible, refuse_too_long
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.resume import check_output, match_run, note_run


def method_of(lora: int | None) -> str:
    """What is trained, in words: `lora` parameters by LoRA, or the whole anchor."""
    return "the whole anchor" if lora is None else f"LoRA of about {lora:,} parameters on the anchor"


def plan_tuned_anchor(
    recipe: TrainingRecipe, models: RecipeModels, output: Path, lora: int | None
) -> tuple[MemberReference, TrainingPlan]:
    """The anchor and the plan of tuning it, from configurations alone.

    Args:
        lora: how many parameters LoRA is to come near to; None tunes the whole model.

    Raises:
        ConfigurationError: it cannot be tuned so: it is inside a saved composition, is an adapter or quantised, the
            optimizer does not go with it, peft is missing, or the machine has too little memory.
        MemberError: see `plan_member`.
    """
    if recipe.extends is not None:
        raise ConfigurationError(
            "The recipe extends a saved composition, and this tunes a plain anchor. Name the anchor in a recipe of its "
            "own."
        )
    source, trust = models.sources[ANCHOR], recipe.trust_remote_code
    revision, asked = recipe.revisions.get(ANCHOR), (recipe.quantizations() or {}).get(ANCHOR)
    if adapter_source(source, revision) is not None:
        raise ConfigurationError(
            f"The anchor '{recipe.anchor}' is an adapter, and this tunes a plain model. Merge it into its base first "
            "(PEFT's merge_and_unload)."
        )
    reference = plan_member(source, ANCHOR, revision, trust, asked, recipe.use_safetensors)
    if lora is None and reference.quantization is not None:
        raise ConfigurationError(
            f"The anchor '{recipe.anchor}' is quantised, and such weights cannot learn. Leave out its quantization, or "
            "use LoRA."
        )
    if lora is None and recipe.training.optimizer == MUON:
        raise ConfigurationError("Muon trains matrices only, and a whole model has vectors too. Use adamw_torch.")
    if lora is not None:
        try:
            import peft  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(f"LoRA takes PEFT, which is not installed. {INSTALL_PEFT}") from error
    plan = plan_tuning(recipe, source, reference, output, micro_batch(recipe.training), lora)
    refuse_impossible(plan)
    return reference, plan


def tune(
    recipe_path: str | Path,
    *,
    lora: int | None = None,
    resume: bool = False,
    command: str | None = None,
    say: Say = print,
    progress: bool = True,
) -> dict[str, Any]:
    """Tune the anchor of a recipe on the recipe's data; what it says of augmenting models is passed over.

    Args:
        recipe_path, resume, say, progress: as in `training.run.train`.
        lora: how many parameters LoRA is to come near to; None tunes the whole model.
        command: what to record as the command, and to advise after an interruption.

    Returns:
        What `OUTPUT/result.json` holds; `results` has the `rank` of LoRA.

    Raises:
        ConfigurationError, MemberError: see `plan_tuned_anchor`.
        RecipeError, DataError, SavedFolderError, Interrupted: as in `training.run.train`.
    """
    recipe_path = Path(recipe_path)
    recipe = read_recipe(recipe_path, TrainingRecipe)
    base = recipe_path.resolve().parent
    output = Path(os.path.normpath(base / Path(recipe.output).expanduser()))
    check_optimizer(recipe.training)
    check_sources(recipe, base)
    check_output(output, recipe_path, resume)
    models = RecipeModels.located(recipe, base)
    reference, plan = plan_tuned_anchor(recipe, models, output, lora)
    data = prepare_data(recipe, models.tokenizer(), base)
    refuse_too_long(plan, *data.longest())
    method = method_of(lora)
    say(f"Trained: {as_count(plan.trained_parameters)} parameters, {method}")
    say("\n".join(plan.needs()))
    if resume:
        match_run(recipe, data, output, method)
    record = run_record(recipe.model_dump(exclude_defaults=True), recipe.seed, command)
    member, model = _ready(recipe, models.sources[ANCHOR], reference, lora)
    if not resume:
        note_run(recipe, data, output, method)
    if lora is None and recipe.dtype == "bfloat16":
        recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"bf16": True})})
    run = Run(
        recipe=recipe,
        name=recipe_path.name,
        data=data,
        plan=plan,
        output=output,
        record=record,
        resume=resume,
        again=record["command"],
        say=say,
        progress=progress,
    )
    pad = member.tokenizer.pad_token_id if member.tokenizer is not None else None

    def make_trainer(arguments: Any, callbacks: list[Any]) -> OrderedTrainer:
        return OrderedTrainer(
            model=model,
            args=arguments,
            train_dataset=data.train,
            eval_dataset=data.validation,
            data_collator=Collator(pad if pad is not None else 0),
            callbacks=[*early_stopping(recipe), *callbacks],
            **optimizer_arguments(recipe.training, model),
        )

    def save(folder: Path) -> None:
        with atomic_folder(folder) as new:
            model.save_pretrained(new)
            if member.tokenizer is not None:
                member.tokenizer.save_pretrained(new)

    result = fit(run, model, make_trainer, save)
    if lora is None:  # each is three times the model, which is saved now
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    return result


def _ready(
    recipe: TrainingRecipe, source: str, reference: MemberReference, lora: int | None
) -> tuple[Member, PreTrainedModel]:
    """The anchor as it was loaded, and the model to train: the same, or the same with adapters around it."""
    dtype = torch.float32 if lora is None else None if recipe.dtype == "auto" else getattr(torch, recipe.dtype)
    member = load_member(
        source,
        role=ANCHOR,
        dtype=dtype,
        device_map=recipe.device_map.get(ANCHOR) if isinstance(recipe.device_map, dict) else recipe.device_map,
        planned=reference,
        trust_remote_code=recipe.trust_remote_code,
        use_safetensors=recipe.use_safetensors,
    )
    if recipe.training.packing:
        check_packing({ANCHOR: member.model})
    model: Any = member.model
    hook_head(model)  # a composition does so to its members
    if lora is None:
        model.requires_grad_(True)
    else:
        model = with_lora(model, matching_rank(model, lora), recipe.seed)
        model.peft_config["default"].base_model_name_or_path = reference.name_or_path
        model.peft_config["default"].revision = reference.revision
    return member, model
