"""Models of one shape joined by their weights: pure functions on state dicts. This file reads no model."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from lmcompose.errors import ConfigurationError

State = Mapping[str, Tensor]


def check_same_shapes(states: Mapping[str, State]) -> None:
    """Refuse models whose weights cannot be added.

    Args:
        states: name -> state dict, of the meta device or any other.

    Raises:
        ConfigurationError: naming the first tensor that differs.
    """
    (first, ours), *others = states.items()
    for name, theirs in others:
        for key in dict.fromkeys([*ours, *theirs]):
            shapes = [list(state[key].shape) if key in state else "missing" for state in (ours, theirs)]
            if shapes[0] != shapes[1]:
                raise ConfigurationError(
                    f"Weights can be added where all shapes match, and {key} is {shapes[0]} in {first} and {shapes[1]} "
                    f"in {name}."
                )


def averaged(states: Sequence[State], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of several models' weights (model soups: Wortsman et al. 2022, arXiv 2203.05482).

    Args:
        states: of one shape; the first gives the dtypes, and whatever is no floating-point tensor.
        shares: of each; they must add up to 1.

    Raises:
        ConfigurationError: shapes that differ, or shares that do not add up to 1.
    """
    check_same_shapes({f"model {number}": state for number, state in enumerate(states)})
    if len(shares) != len(states) or abs(sum(shares) - 1) > 1e-6:
        raise ConfigurationError(f"The shares {list(shares)} of {len(states)} models must add up to 1.")
    return {key: _sum([(share, state[key]) for share, state in zip(shares, states, strict=True)]) for key in states[0]}


def task_arithmetic(anchor: State, pairs: Sequence[tuple[State, State]], scale: float = 1.0) -> dict[str, Tensor]:
    """anchor + scale * sum of (tuned - before): task vectors added (Ilharco et al. 2023, arXiv 2212.04089).

    Args:
        anchor: gives the dtypes, and whatever is no floating-point tensor.
        pairs: (tuned, before) of each task, of the anchor's shape.

    Raises:
        ConfigurationError: shapes that differ.
    """
    for tuned, before in pairs:
        check_same_shapes({"the anchor": anchor, "the tuned model": tuned, "the model before": before})
    joined = {}
    for key, value in anchor.items():
        terms = [(1.0, value)]
        for tuned, before in pairs:
            terms += [(scale, tuned[key]), (-scale, before[key])]
        joined[key] = _sum(terms)
    return joined


def _sum(terms: Sequence[tuple[float, Tensor]]) -> Tensor:
    first = terms[0][1]
    if not first.is_floating_point():
        return first.clone()
    total = terms[0][0] * first.float()
    for weight, tensor in terms[1:]:
        total += weight * tensor.float()
    return total.to(first.dtype)
