"""The sizes of the experiment: the models, the texts, the training. Nothing is computed here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The shape of a small Llama."""

    width: int
    layers: int
    heads: int
    mlp: int


@dataclass(frozen=True)
class Schooling:
    """How a model is trained: AdamW at `learning_rate`, after a warm-up and before a linear fall to zero."""

    steps: int
    rows: int
    learning_rate: float


@dataclass(frozen=True)
class Profile:
    """One size of the experiment.

    Args:
        base, small: the shapes of the model that is not to be tuned, and of the pair.
        base_schooling, small_schooling: how these are first trained, as long and on as much as each other.
        tuning: how the expert and the directly tuned base are tuned, the same for both.
        stories: how many stories the base and its antiexpert read; the antiexpert of another sample reads as many.
        tuning_stories, held_out_stories: how many are retold to tune on, and to be scored on.
        new_tokens: of a story.
        length: tokens in a row of data.
        temperature: of the generator; at 1 a model of 260,000 parameters loses its thread.
        alphas, temperatures: of the sweeps.
        samples, sample_tokens: texts that each model writes, whose style is checked, and their length.
    """

    base: Shape
    small: Shape
    base_schooling: Schooling
    small_schooling: Schooling
    tuning: Schooling
    stories: int
    tuning_stories: int
    held_out_stories: int
    new_tokens: int = 128
    length: int = 144
    temperature: float = 0.8
    alphas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    temperatures: tuple[float, ...] = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
    samples: int = 64
    sample_tokens: int = 96


STORIES = Profile(
    base=Shape(width=128, layers=4, heads=4, mlp=344),
    small=Shape(width=48, layers=2, heads=4, mlp=128),
    base_schooling=Schooling(steps=300, rows=32, learning_rate=6e-3),
    small_schooling=Schooling(steps=300, rows=32, learning_rate=1e-2),
    tuning=Schooling(steps=80, rows=32, learning_rate=2e-3),
    stories=4_096,
    tuning_stories=1_536,
    held_out_stories=320,
    temperatures=(0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
)
"""About six minutes of one core for each seed, and two for the stories, once."""
