"""A whole sampled round by the two functions that make one, as the speculative loop calls them."""

from typing import Any

import torch

from lmcompose.decoding.acceptance import Emitted, accept_sampled, emit_accepted


def emit_sampled(
    draft: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Emitted:
    uniforms = torch.rand(draft.shape, generator=generator, device=draft.device)
    accepted = accept_sampled(draft, draft_probs, target_probs, uniforms)
    return emit_accepted(draft, draft_probs, target_probs, accepted, generator=generator, **options)
