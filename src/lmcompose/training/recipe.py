"""What a training recipe may say: the schema that a YAML file is checked against before anything is loaded.

Every field's description is the documentation of that field. This file knows neither files nor models: whether a path
exists and whether a layer is there is asked later, by `training/data.py` and by `compose`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lmcompose.errors import nearest
from lmcompose.quantization import NONE
from lmcompose.recipe import Strict, problem_at

Kind = Literal["text", "prompt_completion", "chat"]
Layers = tuple[int, int]
Bits = Literal["4bit", "8bit", "none"]
Layer = Annotated[int, Field(ge=0)]

COLUMNS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "prompt_completion": ("prompt", "completion"),
    "chat": ("messages",),
}
"""The columns that each kind of data reads; `columns` in a recipe gives them other names."""


class DataSource(Strict):
    """One file, or one dataset, of composition data."""

    path: str | None = Field(None, description="A .jsonl, .json, .csv, .tsv, .parquet or .txt file.")
    dataset: str | None = Field(
        None, description="A dataset of the Hugging Face hub, or a folder that `datasets` reads."
    )
    name: str | None = Field(None, description="The configuration of the dataset.")
    split: str = Field("train", description="The split of the dataset.")
    revision: str | None = Field(None, description="The revision of the dataset.")
    kind: Kind = Field("text", description="text, prompt_completion, or chat.")
    columns: dict[str, str] = Field(default_factory=dict, description="Your names of the columns, e.g. text: body.")
    weight: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Share of the examples that come from here. Give all sources a weight, or none."
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="Read the first so many examples only.")
    documents: Literal["line", "file"] = Field("line", description="A .txt file holds one document a line, or is one.")
    long_examples: Literal["split", "truncate", "skip", "error"] | None = Field(
        None,
        description="What becomes of an example longer than max_length: split into several (the default of text), "
        "cut at the end (the default of the other kinds), skipped, or an error.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> "DataSource":
        if (self.path is None) == (self.dataset is None):
            raise ValueError("give a data source either 'path' (a file) or 'dataset' (a name or folder)")
        for column in self.columns:
            if column not in COLUMNS[self.kind]:
                wanted = ", ".join(COLUMNS[self.kind])
                raise ValueError(
                    f"columns: '{column}' is not read by kind '{self.kind}' (it reads: {wanted})."
                    + nearest(column, COLUMNS[self.kind])
                )
        if self.kind != "text" and self.long_examples == "split":
            raise ValueError(
                f"long_examples: split cuts an answer from its prompt, so kind '{self.kind}' has no use of it"
            )
        return self

    @property
    def label(self) -> str:
        """The name of this source in messages."""
        return self.path if self.path is not None else f"{self.dataset} ({self.split})"

    def column(self, role: str) -> str:
        """The user's name for the column `role`."""
        return self.columns.get(role, role)


class Validation(Strict):
    """Held-out data: a fraction of each source, or sources of its own."""

    fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="Hold out this part of each source.")
    data: list[DataSource] | None = Field(None, min_length=1, description="Sources that are only for validation.")
    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Of the choice of a fraction; the recipe's seed by default."
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="While training, look at the first so many of what each source holds out; ablations score all.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "Validation":
        if (self.fraction is None) == (self.data is None):
            raise ValueError("give validation either 'fraction' or 'data'")
        if self.seed is not None and self.fraction is None:
            raise ValueError("seed goes with 'fraction': nothing is chosen where 'data' are given")
        return self


class EarlyStopping(Strict):
    """Stop when the validation loss has not improved for a while, and keep the best parameters."""

    patience: Annotated[int, Field(ge=1)] = Field(3, description="Evaluations without improvement before stopping.")
    min_delta: Annotated[float, Field(ge=0)] = Field(0.0, description="A smaller improvement does not count.")


class Optimization(Strict):
    """How the composition parameters are trained."""

    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Optimizer steps. Give steps or epochs.")
    epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Passes over the data. Give steps or epochs."
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        8, description="Rows per optimizer step, over all processes and accumulation steps together."
    )
    gradient_accumulation: Annotated[int, Field(ge=1)] = Field(
        1, description="Compute a batch in so many pieces: less memory, the same result."
    )
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    unfrozen_learning_rate: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Of the layers that 'unfreeze' names; learning_rate by default. A tenth of it is a good start.",
    )
    lr_scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr"] = "cosine"
    lr_scheduler_kwargs: dict[str, Any] = Field(default_factory=dict)
    warmup: Annotated[float, Field(ge=0)] = Field(0.05, description="Steps (1 or more) or a fraction of all steps.")
    optimizer: str = Field(
        "adamw_torch",
        description="adamw_torch, adamw_torch_fused, adafactor, sgd, adagrad, rmsprop, muon, or a name of "
        "transformers.TrainingArguments(optim=...) whose package is installed.",
    )
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0)] = Field(1.0, description="Clip the gradient norm; 0 for no clipping.")
    max_length: Annotated[int, Field(ge=2)] = Field(512, description="Tokens per row.")
    packing: bool = Field(False, description="Put several documents in one row; none of them sees another.")
    bf16: bool = Field(
        False, description="Compute the bridges under bf16 autocast too; their parameters stay as they are."
    )
    gradient_checkpointing: bool = Field(False, description="Recompute the anchor's layers in the backward pass.")
    early_stopping: EarlyStopping | None = None
    eval_every: Annotated[int, Field(ge=1)] | None = Field(None, description="Steps between evaluations.")
    eval_batch_size: Annotated[int, Field(ge=1)] | None = None
    save_every: Annotated[int, Field(ge=1)] | None = Field(None, description="Steps between checkpoints.")
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    log_every: Annotated[int, Field(ge=1)] = Field(10, description="Steps between points of the loss curve.")
    workers: Annotated[int, Field(ge=0)] = Field(0, description="Processes that prepare batches.")

    @model_validator(mode="after")
    def _consistent(self) -> "Optimization":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give training either 'steps' or 'epochs'")
        if self.batch_size % self.gradient_accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be computed in {self.gradient_accumulation} equal pieces "
                "(gradient_accumulation); choose a divisor"
            )
        if self.early_stopping and self.save_every and self.eval_every and self.save_every % self.eval_every:
            raise ValueError("with early_stopping, save_every must be a multiple of eval_every")
        return self


class Pipeline(Strict):
    """Two models joined by text alone: what the augmenting model answers is put into the anchor's prompt."""

    template: str = Field(
        "A hint: {answer}\n\n{prompt}", description="The anchor's prompt, with {answer} and {prompt} in it."
    )
    new_tokens: Annotated[int, Field(ge=1)] = Field(64, description="Tokens of an answer, at most.")

    @model_validator(mode="after")
    def _both_places(self) -> "Pipeline":
        if not all(place in self.template for place in ("{answer}", "{prompt}")):
            raise ValueError("template needs the places {answer} and {prompt}")
        return self


class Ablations(Strict):
    """What the composition is compared with by `python -m lmcompose.experiments.ablations`; training passes over it."""

    vanilla: str | dict[str, str] | None = Field(
        None, description="What the augmenting model was before its domain training, or name: one, of each."
    )
    domain_data: list[DataSource] | None = Field(
        None, min_length=1, description="All of the domain data, to tune the anchor on (the papers' skyline)."
    )
    domain_epochs: Annotated[float, Field(gt=0)] = Field(1.0, description="Passes over the domain data.")
    forgetting: list[DataSource] | None = Field(
        None, min_length=1, description="Held-out data of what the anchor could do before."
    )
    weight: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of the augmenting models in ensemble and average; by default all models count alike."
    )
    scale: Annotated[float, Field(gt=0)] = Field(1.0, description="Of what task arithmetic adds to the anchor.")
    alpha: Annotated[float, Field(gt=0)] = Field(1.0, description="Of proxy-tuning.")
    learning_rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Arm: the learning rate that it is trained with in place of the recipe's."
    )
    pipeline: Pipeline = Field(Pipeline.model_validate({}), description="How the pipeline arm puts an answer in.")


class TrainingRecipe(Strict):
    """A whole recipe: two or more models, how they are connected, the data, the training, and where results go."""

    anchor: str | None = Field(
        None, description="The anchor model: a hub id, a folder, a GGUF file or an adapter. Give this or extends."
    )
    extends: str | None = Field(
        None, description="A saved composition to add the augmenting models to, in place of an anchor."
    )
    augmenting: str | dict[str, str] = Field(
        description="The augmenting model, or several as name: model; with extends, those that are added, with names."
    )
    trainable: Literal["new", "all"] | None = Field(
        None,
        description="With extends: train the bridges that are added (new, the default), or the old ones too (all).",
    )
    connections: list[Layers] | dict[str, list[Layers]] | None = Field(
        None, description="[augmenting layer, anchor layer] pairs; left out: spread evenly as in the CALM paper."
    )
    every: Annotated[int, Field(ge=1)] = Field(4, description="Without connections: one for so many augmenting layers.")
    num_heads: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Heads of a bridge; the anchor's by default."
    )
    alignment: Literal["ids", "spans"] | dict[str, Literal["ids", "spans"]] | None = Field(
        None,
        description="ids: the augmenting model must read the anchor's tokens; spans: it reads the same text in tokens "
        "of its own; left out: whatever their tokenizers ask for. Or name: one of the two.",
    )
    projection: Literal["linear", "mlp"] = Field("linear", description="linear as in the paper, or mlp.")
    gate: bool = Field(False, description="Beyond the paper: a learned gate, tanh(g), on what each connection adds.")
    norm: bool = Field(False, description="Beyond the paper: RMS-norm what the bridges read of both models.")
    rank: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Beyond the paper: every matrix of the bridges as a product of two of this rank."
    )
    bridge_initializer_range: Annotated[float, Field(gt=0)] = Field(
        0.02, description="Standard deviation of the initial composition parameters; W_O, or the gate, starts at zero."
    )
    reads: Literal["text", "prompt"] | dict[str, Literal["text", "prompt"]] | None = Field(
        None,
        description="text (the default): an augmenting model reads every token; prompt: it reads what comes before the "
        "answer, once. Or name: one of the two.",
    )
    unfreeze: dict[str, list[Layer]] | None = Field(
        None,
        description="Decoder layers to train too (beyond the paper), as anchor or an augmenting name: [layers from 1]. "
        "The models themselves stay as they are.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Of the frozen members; with extends, of those that are added."
    )
    bridge_dtype: Literal["float32", "bfloat16"] = Field("float32", description="Of the composition parameters.")
    revisions: dict[str, str] = Field(default_factory=dict, description="Hub revisions: anchor or an augmenting name.")
    quantization: Bits | dict[str, Bits] = Field(
        "none",
        description="Of the frozen members as they are read, 4bit or 8bit (takes bitsandbytes); or anchor or an "
        "augmenting name: one of the two. With extends, of those that are added.",
    )
    device_map: str | dict[str, Any] | None = Field(
        None, description="Where the members go: cpu, cuda:1, ...; or anchor or an augmenting name: one of these."
    )
    trust_remote_code: bool = Field(False, description="Run code that comes with a model. Read that code first.")
    use_safetensors: bool = Field(True, description="false reads weights that are pickles too, which can run code.")
    data: list[DataSource] = Field(min_length=1, description="Composition data.")
    validation: Validation | None = None
    training: Optimization
    ablations: Ablations | None = None
    output: str = Field(description="The folder of the results.")
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingRecipe":
        weighted = [source.weight is not None for source in self.data]
        if any(weighted) and not all(weighted):
            raise ValueError("data: give all sources a weight, or none of them")
        if self.validation is None and self.training.early_stopping is not None:
            raise ValueError("training: early_stopping needs a 'validation' section to watch")
        if self.validation is None and self.training.eval_every is not None:
            raise ValueError("training: eval_every needs a 'validation' section to evaluate on")
        if self.training.unfrozen_learning_rate is not None and not self.unfreeze:
            raise problem_at("it goes with 'unfreeze', and no layer is unfrozen", "training", "unfrozen_learning_rate")
        self._one_beginning()
        members = [*(["anchor"] if self.anchor is not None else []), *self.augmenting_sources()]
        for name in self.revisions:
            if name not in members:
                raise problem_at(f"there is no member '{name}' to pin." + nearest(name, members), "revisions", name)
        for name in self.quantization if isinstance(self.quantization, dict) else ():
            if name not in members:
                raise problem_at(f"there is no member '{name}' to load." + nearest(name, members), "quantization", name)
        return self

    def _one_beginning(self) -> None:
        """A recipe begins with an anchor, or with a saved composition that has one."""
        if self.extends is None:
            if self.anchor is None:
                raise ValueError("missing key 'anchor' (or 'extends', to add to a saved composition)")
            if self.trainable is not None:
                raise problem_at(
                    "it goes with 'extends': without one, all bridges are new and are trained", "trainable"
                )
            return
        if self.anchor is not None:
            raise problem_at("leave out 'anchor': the composition that 'extends' names has its own", "anchor")
        if isinstance(self.augmenting, str):
            raise problem_at("give what is added a name: a line 'name: model' under 'augmenting'", "augmenting")
        for key in ("num_heads", "projection", "gate", "norm", "rank", "bridge_initializer_range"):
            if key in self.model_fields_set:
                raise problem_at(f"leave out '{key}': new bridges are built like those of 'extends'", key)

    def quantizations(self) -> dict[str, str] | None:
        """role -> quantization, of those that have one; None where there is none."""
        roles = [*(["anchor"] if self.anchor is not None else []), *self.augmenting_sources()]
        asked = self.quantization
        wanted = asked if isinstance(asked, dict) else dict.fromkeys(roles, asked)
        return {role: word for role, word in wanted.items() if word != NONE} or None

    def augmenting_sources(self) -> dict[str, str]:
        """Name -> source of every augmenting model; a single one is called "augmenting"."""
        return {"augmenting": self.augmenting} if isinstance(self.augmenting, str) else dict(self.augmenting)

    @property
    def trains_all(self) -> bool:
        """Whether all bridges are trained, and not only those that are added to a saved composition."""
        return self.extends is None or self.trainable == "all"
