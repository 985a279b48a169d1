"""The sizes of the experiment, and every setting of its tuning."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """One size.

    Args:
        tuned_pairs: sentence pairs of HornMT to tune on, read once.
        tested_pairs: lines of NTREX to test on.
        longest: characters of the longest English sentence that is taken, in both; CPU hours are counted in tokens.
        rank, lora_alpha: of LoRA on every linear layer but the head, the same for the small and the large model.
        learning_rate: its peak, which falls to zero in a straight line after `warmup` steps.
        rows: sentence pairs in an optimizer step.
        alphas, temperatures: of the sweeps.
        new_tokens: of a translation, at most.
        rows_at_once: translations that are written together.
    """

    tuned_pairs: int = 400
    tested_pairs: int = 300
    longest: int = 120
    rank: int = 16
    lora_alpha: int = 32
    learning_rate: float = 5e-4
    warmup: int = 5
    rows: int = 8
    alphas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    temperatures: tuple[float, ...] = (0.7, 0.85, 1.0, 1.15, 1.3)
    new_tokens: int = 80
    rows_at_once: int = 50

    def of_tuning(self) -> tuple[float, ...]:
        """The settings that an adapter depends on."""
        return (self.tuned_pairs, self.longest, self.rank, self.lora_alpha, self.learning_rate, self.warmup, self.rows)
