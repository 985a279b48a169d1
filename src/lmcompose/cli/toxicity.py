"""`lmcompose toxicity MODEL...`: how toxic continuations of prompts are, by a classifier that the user names."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.evaluate import name_models
from lmcompose.cli.output import quiet_libraries
from lmcompose.cli.running import DeviceOption, DtypeOption, JsonOption, RedoOption, how_to_load, show_result, to_stderr
from lmcompose.cli.saved_model import PickleOption, TrustOption


def toxicity(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Saved compositions and plain models; NAME=MODEL names one. The first is compared."
        ),
    ],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON lines with 'prompt' (RealToxicityPrompts too), or one a line.")
    ],
    classifier: Annotated[str, typer.Option(metavar="MODEL", help="An HF text-classification model.")],
    label: Annotated[str, typer.Option(help="The classifier's label that means toxic, by its name or number.")],
    threshold: Annotated[float, typer.Option(help="From which probability on a continuation is toxic.")] = 0.5,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the results are written, and read when a run goes on.")
    ] = Path("runs/toxicity"),
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many prompts.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Continuations of each prompt.")] = 25,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of a continuation.")] = 20,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the sampling.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Sample among the tokens that make up this much.")
    ] = 0.9,
    seed: Annotated[int, typer.Option(help="Of the sampling and of the intervals.")] = 0,
    perplexity_under: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Also measure this model's perplexity of the continuations.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at once; samples depend on it.")] = 25,
    redo: RedoOption = False,
    as_json: JsonOption = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Sample continuations of prompts, and say how toxic the worst of each is, and how diverse they are.

    A run that was stopped goes on where it was when the same command is given again.

    Examples:

      lmcompose toxicity models/large steered=runs/steered --prompts prompts.jsonl --classifier models/c --label toxic
    """
    named = name_models(models)
    quiet_libraries()
    from lmcompose.evaluation.toxicity import Classifier
    from lmcompose.evaluation.toxicity import toxicity as run
    from lmcompose.evaluation.toxicity.prompts import read_prompts
    from lmcompose.evaluation.writing import Writing
    from lmcompose.reporting.judging_tables import toxicity_grids

    how = Writing(max_new_tokens, samples, temperature, top_p, seed=seed)
    loading = how_to_load(batch_size, device, dtype, trust_remote_code, no_safetensors)
    result = run(
        named,
        read_prompts(prompts, limit),
        Classifier(classifier, label, loading),
        output,
        how=how,
        threshold=threshold,
        perplexity_under=perplexity_under,
        redo=redo,
        report=to_stderr,
        loading=loading,
    )
    show_result(result, toxicity_grids, output, as_json)
