"""FLOPs for each token of the anchor: of a training step by CALM, LoRA and full tuning, and of decoding.

Pure functions on the matrix products of `matrices.py`. A matrix product takes 2 FLOPs for each number of the matrix (a
product and a sum), for each token. The backward pass takes 2 more where the gradient goes on to the input, and 2 more
where the matrix itself learns. Attention over K keys takes 2 K N_H d_qk for the scores and 2 K N_H d_v for the values;
backwards there are two products for each of these, whether or not anything in the layer learns.

Left out are what is no matrix product (norms, activations, softmax, rotary positions, the loss, the optimizer, the
look-up of embeddings and its gradient, the scan of a recurrent state) and what is computed twice (gradient
checkpointing, the scores that flash attention computes again in its backward pass). Masks save nothing here, as in
HF's eager and SDPA attention over whole rows: a causal or sliding kernel takes about half of the attention part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmcompose.experiments.overhead.matrices import Connection, Decoder, Layer


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of a training step: forward, and backward to inputs and to weights."""

    forward: float
    to_inputs: float = 0
    to_weights: float = 0

    @property
    def total(self) -> float:
        """All three."""
        return self.forward + self.to_inputs + self.to_weights

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.forward + other.forward, self.to_inputs + other.to_inputs, self.to_weights + other.to_weights)

    def times(self, factor: float) -> "Flops":
        """The same, `factor` times."""
        return Flops(factor * self.forward, factor * self.to_inputs, factor * self.to_weights)


def product(weights: float, *, to_inputs: bool = True, to_weights: bool = True) -> Flops:
    """Matrices of so many numbers in all, for one token."""
    return Flops(2 * weights, 2 * weights * to_inputs, 2 * weights * to_weights)


def attention(width: float, keys: float, *, to_inputs: bool = True) -> Flops:
    """Scores and values of one token over so many keys; `width` is N_H (d_qk + d_v)."""
    return Flops(2 * width * keys, 4 * width * keys * to_inputs)


def pass_of(
    layers: Sequence[Layer], head: float, length: float, *, to_inputs: bool = True, to_weights: bool = True
) -> Flops:
    """Layers and a head, in a text of `length` tokens."""
    total = product(head, to_inputs=to_inputs, to_weights=to_weights)
    for layer in layers:
        total += product(layer.weights, to_inputs=to_inputs, to_weights=to_weights)
        total += attention(layer.attention, length, to_inputs=to_inputs)
    return total


def full_tuning(model: Decoder, length: float) -> Flops:
    """Every parameter of the model learns, the embeddings too, so that the gradient goes all the way down."""
    return pass_of(model.layers, model.head, length)


def lora(model: Decoder, rank: int, length: int) -> Flops:
    """LoRA on all linear layers but the head: no weight gradients in the model itself, and a gradient all the way down.

    What first reads the frozen embeddings needs no gradient of its input. Which linear layers these are (mostly W_Q,
    W_K and W_V of the first layer) a model does not say, so this counts 2 FLOPs too many for each of their numbers and
    of their A matrices.
    """
    frozen = pass_of(model.layers, model.head, length, to_weights=False)
    return frozen + product(rank * model.per_rank)


@dataclass(frozen=True)
class CalmFlops:
    """A training step of CALM, by part."""

    augmenting: Flops
    anchor: Flops
    bridges: Flops

    @property
    def total(self) -> Flops:
        """The sum of the parts."""
        return self.augmenting + self.anchor + self.bridges


def calm(
    anchor: Decoder, augmenting: Decoder, bridges: Sequence[Connection], length: int, augmenting_tokens: float = 1.0
) -> CalmFlops:
    """The bridges learn and nothing else does.

    m_A runs forward without its head. The anchor has no weight gradients, and no gradient below its first connection.

    Args:
        length: anchor tokens in a row.
        augmenting_tokens: how many tokens m_A reads for each of the anchor's; 1 with one tokenizer.
    """
    first = min(bridge.anchor_layer for bridge in bridges)
    theirs = augmenting_tokens * length
    reading = pass_of(augmenting.layers, 0, theirs, to_inputs=False, to_weights=False)
    below = pass_of(anchor.layers[:first], 0, length, to_inputs=False, to_weights=False)
    above = pass_of(anchor.layers[first:], anchor.head, length, to_weights=False)
    learning = Flops(0)
    for bridge in bridges:
        learning += product(bridge.source, to_inputs=False).times(augmenting_tokens)
        learning += product(bridge.keys).times(augmenting_tokens)
        learning += product(bridge.query, to_inputs=bridge.anchor_layer > first) + product(bridge.output)
        learning += attention(bridge.attention, theirs)
    return CalmFlops(reading.times(augmenting_tokens), below + above, learning)


def decoding(model: Decoder, context: float, *, head: bool = True) -> float:
    """FLOPs to decode one token after `context` - 1 others, which are in the cache; layers that slide see their window.

    `head=False` leaves out the head, as a composition does of its augmenting model.
    """
    total = 2 * (model.body + model.head * head)
    for layer in model.layers:
        total += attention(layer.attention, context if layer.window is None else min(layer.window, context)).forward
    return total


def decoding_bridges(bridges: Sequence[Connection], context: float, augmenting_tokens: float = 1.0) -> float:
    """FLOPs of all bridges for one decoded token of the anchor."""
    return sum(
        2 * augmenting_tokens * (bridge.source + bridge.keys)
        + 2 * (bridge.query + bridge.output)
        + attention(bridge.attention, augmenting_tokens * context).forward
        for bridge in bridges
    )


def training_shares(data: float, augmenting_cost: float, step: float = 1.0) -> tuple[float, float]:
    """What CALM costs, alone and with the training of m_A, as shares of tuning m_B on all of the data.

    The reckoning of the CALM paper (arXiv 2401.02412, appendix C.2): CALM trains on a share `data` of the data, m_A on
    all of them, and costs grow in proportion to data and to parameters.

    Args:
        data: 0.02 in the paper's example.
        augmenting_cost: tuning m_A over tuning m_B, for each token; the paper takes the ratio of their parameters, 0.1.
        step: a step of CALM over a step of tuning m_B, for each token; the paper takes 1.

    >>> training_shares(0.5, 0.25)
    (0.5, 0.75)
    """
    alone = data * step
    return alone, augmenting_cost + alone
