"""Which augmenting layer is joined to which anchor layer, and which layers may be trained.

A connection is `(augmenting layer, anchor layer)`, where 0 means the embeddings and k the output of decoder layer k.
Pure functions on numbers: this file knows no model.
"""

from collections.abc import Sequence

from lmcompose.errors import ConfigurationError

Connection = tuple[int, int]


def default_connections(augmenting_layers: int, anchor_layers: int, every: int = 4) -> list[Connection]:
    """The paper's spacing (CALM, section 3.1): every (N_A/n)-th augmenting layer to every (N_B/n)-th anchor layer.

    The rounding rule: n = round(N_A / every), at least 1 and at most the depth of the shallower model; the k-th
    connection (k = 1..n) joins augmenting layer round(k N_A / n) to anchor layer round(k N_B / n), halves rounded up.
    The last layers are therefore always joined.

    >>> default_connections(8, 12)
    [(4, 6), (8, 12)]
    >>> default_connections(2, 5)
    [(2, 5)]
    """
    if every < 1:
        raise ConfigurationError(f"every = {every}: connections come every so many augmenting layers; give 1 or more.")
    n = max(1, min(_round_half_up(augmenting_layers, every), augmenting_layers, anchor_layers))
    return spread_connections(n, augmenting_layers, anchor_layers)


def spread_connections(n: int, augmenting_layers: int, anchor_layers: int) -> list[Connection]:
    """`n` connections, k = 1..n, of augmenting layer round(k N_A / n) to anchor layer round(k N_B / n).

    >>> spread_connections(3, 6, 12)
    [(2, 4), (4, 8), (6, 12)]
    """
    return [(_round_half_up(k * augmenting_layers, n), _round_half_up(k * anchor_layers, n)) for k in range(1, n + 1)]


def _round_half_up(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def check_connections(
    connections: Sequence[Sequence[int]], augmenting_layers: int, anchor_layers: int
) -> list[Connection]:
    """`connections` as a list of pairs, each of them possible and none of them twice.

    Raises:
        ConfigurationError: no connection, not a pair of integers, a layer that is not there, or a repeated pair.
    """
    if not connections:
        raise ConfigurationError("There are no connections: give at least one (augmenting layer, anchor layer) pair.")
    checked: list[Connection] = []
    for connection in connections:
        pair = tuple(connection) if isinstance(connection, (list, tuple)) else (connection,)
        if len(pair) != 2 or not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in pair):
            raise ConfigurationError(
                f"Connection {connection!r} is no (augmenting layer, anchor layer) pair of integers, such as (4, 6)."
            )
        augmenting, anchor = pair
        for model, layer, depth in (("augmenting", augmenting, augmenting_layers), ("anchor", anchor, anchor_layers)):
            if not 0 <= layer <= depth:
                raise ConfigurationError(
                    f"Connection ({augmenting}, {anchor}): the {model} model has no layer {layer}. "
                    f"Its layers are 0 (the embeddings) to {depth} (the output of its last decoder layer)."
                )
        if (augmenting, anchor) in checked:
            raise ConfigurationError(f"Connection ({augmenting}, {anchor}) is given twice. Keep one of them.")
        checked.append((augmenting, anchor))
    return checked


def check_unfrozen(role: str, layers: Sequence[int], depth: int, pairs: Sequence[Connection] | None = None) -> None:
    """Refuse layers that cannot be trained with a composition.

    Args:
        role: of the member, for messages.
        layers: to unfreeze.
        depth: decoder layers of the member.
        pairs: the connections of an augmenting model; None for the anchor.

    Raises:
        ConfigurationError: not a list of integers, a layer that is not there or given twice, the embeddings, or one
            whose output no connection reads.
    """
    numbers = list(layers) if isinstance(layers, (list, tuple)) else []
    if not numbers or not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in numbers):
        raise ConfigurationError(f"unfreeze: give '{role}' a list of layers such as [3], and not {layers!r}.")
    top = depth if pairs is None else max(augmenting for augmenting, _ in pairs)
    for layer in numbers:
        if layer == 0:
            raise ConfigurationError(
                f"unfreeze: layer 0 of '{role}' is its embeddings, which stay frozen: in many models the same table is "
                f"the output head. Choose from its decoder layers, 1 to {top}."
            )
        if not 1 <= layer <= depth:
            raise ConfigurationError(
                f"unfreeze: '{role}' has no layer {layer}. Choose from its decoder layers, 1 to {top}."
            )
        if layer > top:
            raise ConfigurationError(
                f"unfreeze: nothing reads layer {layer} of '{role}', whose last connected layer is {top}, so it would "
                f"not learn. Choose from 1 to {top}, or connect a later layer."
            )
        if numbers.count(layer) > 1:
            raise ConfigurationError(f"unfreeze: layer {layer} of '{role}' is given twice. Keep one of them.")
