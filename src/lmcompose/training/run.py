"""A recipe becomes a trained composition: check, plan, compose, train, save, and say where the results are.

    OUTPUT/model/              the composition: parameters, configuration, tokenizer, model card
    OUTPUT/loss_curve.json     and .png
    OUTPUT/result.json         the recipe, versions, seed, command, and the figures of the run
    OUTPUT/run.json            what the run was started with; a resumed run must match it
    OUTPUT/checkpoints/        what --resume goes on from

Everything that can be refused is refused before a weight is read.
"""

import os
import shlex
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from lmcompose.calm.config import ANCHOR
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.card import run_record
from lmcompose.recipe import read_recipe
from lmcompose.training.arguments import early_stopping, is_main_process, micro_batch, processes
from lmcompose.training.data import CompositionData, check_sources, prepare_data
from lmcompose.training.fit import Run, Say, fit
from lmcompose.training.models import RecipeModels
from lmcompose.training.optimizers import check_optimizer, optimizer_arguments
from lmcompose.training.packing import Collator, check_packing
from lmcompose.training.plan import plan_training, refuse_impossible, refuse_too_long, shown
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.resume import check_output, match_run, note_run
from lmcompose.training.trainer import CalmTrainer


def train(
    recipe_path: str | Path,
    *,
    resume: bool = False,
    dry_run: bool = False,
    force: bool = False,
    command: str | None = None,
    say: Say = print,
    progress: bool = True,
) -> dict[str, Any]:
    """Train the composition that a recipe describes.

    Args:
        recipe_path: a YAML file; relative paths in it start from its folder.
        resume: go on from the latest checkpoint of the same recipe, to the same losses as an uninterrupted run.
        dry_run: check everything and print the plan, then stop before a weight is read.
        force: start even if the plan says that memory cannot suffice.
        command: what to record as the command; by default the command line of this process.
        say: prints one message.
        progress: show a progress bar on standard error.

    Returns:
        What `OUTPUT/result.json` holds (of a dry run: the plan and the data's summary).

    Raises:
        RecipeError, ConfigurationError, MemberError, DataError: before any weight is read.
        SavedFolderError: a checkpoint or the result could not be written; what was there before is whole.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint was written and the message says how to go on.
    """
    recipe_path = Path(recipe_path)
    recipe = read_recipe(recipe_path, TrainingRecipe)
    base = recipe_path.resolve().parent
    output = Path(os.path.normpath(base / Path(recipe.output).expanduser()))
    say = say if is_main_process() else _silent
    rows = micro_batch(recipe.training)
    check_optimizer(recipe.training)
    check_sources(recipe, base)
    check_output(output, recipe_path, resume)

    models = RecipeModels.located(recipe, base)
    composition = models.plan()
    plan = plan_training(recipe, composition, models.places(composition), output, rows, models.kept_bytes())
    data = prepare_data(recipe, models.tokenizer(), base)
    refuse_too_long(plan, *data.longest())
    say(plan.describe())
    say(describe_data(data, recipe))
    if not force:
        refuse_impossible(plan)
    if dry_run:
        return {
            "what": "plan",
            "plan": plan.to_dict(),
            "data": data.summary,
            "steps": data.steps,
            "epochs": data.epochs,
        }

    if resume:
        match_run(recipe, data, output)
    record = run_record(recipe.model_dump(exclude_defaults=True), recipe.seed, command)
    model = models.compose()
    model.config.provenance = {**(model.config.provenance or {}), **record}
    if recipe.training.packing:
        check_packing({ANCHOR: model.anchor, **model.augmenting})
    if not resume:
        note_run(recipe, data, output)
    run = Run(
        recipe=recipe,
        name=recipe_path.name,
        data=data,
        plan=plan,
        output=output,
        record=record,
        resume=resume,
        again=f"lmcompose train {recipe_path} --resume",
        say=say,
        progress=progress,
    )
    result = fit(
        run,
        model,
        lambda arguments, callbacks: make_trainer(model, recipe, data, arguments, callbacks),
        model.save_pretrained,
    )
    _say_results(say, output, result["results"], "the anchor alone" if recipe.extends is None else recipe.extends)
    return result


def make_trainer(
    model: CalmForCausalLM,
    recipe: TrainingRecipe,
    data: CompositionData,
    arguments: TrainingArguments,
    callbacks: list[TrainerCallback],
) -> CalmTrainer:
    """The trainer of a recipe, ready to train."""
    pad = model.tokenizer.pad_token_id if model.tokenizer is not None else None
    return CalmTrainer(
        model=model,
        args=arguments,
        train_dataset=data.train,
        eval_dataset=data.validation,
        data_collator=Collator(pad if pad is not None else 0),
        unfrozen_learning_rate=recipe.training.unfrozen_learning_rate,
        callbacks=[*early_stopping(recipe), *callbacks],
        **optimizer_arguments(recipe.training, model),
    )


def describe_data(data: CompositionData, recipe: TrainingRecipe) -> str:
    """The data and the length of the run in a few lines of text."""
    lines = ["Composition data:"]
    for source in data.summary:
        skipped = f", {source['skipped']} skipped (too long)" if source["skipped"] else ""
        lines.append(
            f"  {source['source']} ({source['kind']}): {source['train_examples']} examples to train on, "
            f"{source['validation_examples']} to validate on; {source['learned_tokens']} of {source['tokens']} tokens "
            f"learned{skipped}"
        )
    lines.append(
        f"Run: {data.steps} steps of {recipe.training.batch_size} {'packed ' if recipe.training.packing else ''}rows, "
        f"{data.epochs:.2f} epochs, on {processes()} process{'es' if processes() > 1 else ''}"
    )
    return "\n".join(lines)


def _say_results(say: Say, output: Path, results: dict[str, Any], beginning: str) -> None:
    before, after = results["validation_loss_untrained"], results["validation_loss"]
    model = shown(output / "model")
    say(
        f"Done: {results['steps']} steps in {results['seconds']} s"
        + (f", validation loss {before:.4f} ({beginning}) -> {after:.4f}" if after is not None else "")
        + f"\n  model       {model}\n  loss curve  {shown(output / 'loss_curve.png')}"
        f"\n  results     {shown(output / 'result.json')}\n"
        f'Try it:  lmcompose generate {shlex.quote(model)} "..."'
    )


def _silent(text: str) -> None:
    """What processes other than the main one say."""
