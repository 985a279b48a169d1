"""What is counted while texts are decoded in drafts."""

from dataclasses import asdict, dataclass

import torch

from lmcompose.decoding.acceptance import Emitted


@dataclass
class Statistics:
    """What speculation did for one call of `generate`.

    Attributes:
        drafted: drafted tokens, over all unfinished rows.
        accepted: those of them that their own row accepted. In a batch some are thrown away all the same; that shows
            in `passes_per_token`.
        rounds: how many blocks were drafted and scored.
        positions: how many tokens these blocks had, each counted once for the batch.
        passes: passes of the target (all members but the drafter), the prompt's included where the caller counts it.
        drafter_passes: passes of the drafter, where the caller counts them.
        guessed: tokens that were looked up and judged, by the drafter or, without one, by the target; over all
            unfinished rows.
        right: those of them that their own row accepted.
        tokens: by how many tokens each row grew; padding of finished rows included, for plain decoding pads as well.
    """

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    positions: int = 0
    passes: int = 0
    drafter_passes: int = 0
    guessed: int = 0
    right: int = 0
    tokens: int = 0

    def add(
        self,
        emitted: Emitted,
        drafted: int,
        finished: torch.Tensor | None = None,
        passes: int = 1,
        drafter_passes: int = 0,
        guessed: int = 0,
        right: int = 0,
    ) -> None:
        """Count one round of `drafted` tokens per row; `finished` [B] as it was given to the round."""
        accepted = emitted.accepted if finished is None else emitted.accepted[~finished]
        self.drafted += drafted * accepted.numel()
        self.accepted += int(accepted.sum())
        self.rounds += drafted > 0
        self.positions += drafted
        self.passes += passes
        self.drafter_passes += drafter_passes
        self.guessed += guessed
        self.right += right
        self.tokens += emitted.tokens.shape[1]

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were accepted (longer drafts lower it); None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def passes_per_token(self) -> float | None:
        """Passes of the target per token: 1 in plain decoding, less when drafts are kept; None without a token."""
        return self.passes / self.tokens if self.tokens else None

    @property
    def draft_length(self) -> float | None:
        """The mean length of a draft; None when nothing was drafted."""
        return self.positions / self.rounds if self.rounds else None

    def to_dict(self) -> dict[str, int | float | None]:
        """The counts and the ratios, ready for JSON."""
        ratios = {name: getattr(self, name) for name in ("acceptance", "passes_per_token", "draft_length")}
        return {**asdict(self), **ratios}
