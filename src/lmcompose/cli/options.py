"""Options of several verbs that come as text: NAME=NUMBER pairs, and numbers or schedules of numbers."""

from lmcompose.errors import ConfigurationError


def parse_pairs(given: list[str] | None, option: str, form: str, example: str) -> dict[str, str]:
    """The texts of an option that can be given several times, NAME=NUMBER each, as a dict.

    Args:
        option, form, example: for the message, such as "--member", "ROLE=MODEL" and "anchor=models/large".

    Raises:
        ConfigurationError: a text without '=', or a name that is given twice.
    """
    pairs: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigurationError(f"{option} '{text}' is not of the form {form}, as in {example}.")
        if name in pairs:
            raise ConfigurationError(f"{option} {name}=... is given twice. Keep one of the two.")
        pairs[name] = value
    return pairs


def parse_value(text: str, option: str) -> float | list[float]:
    """A number, or numbers with commas between them, one for each step.

    Raises:
        ConfigurationError: the text is neither.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"{option} '{text}' is no number. Give one, such as 1.5, or one for each step, such as 2,1.5,1."
        ) from None
    return numbers if "," in text else numbers[0]


def parse_parameters(alpha: str | None, given: list[str] | None) -> dict[str, float | list[float]]:
    """The values of --alpha and of all --parameter NAME=NUMBER.

    Raises:
        ConfigurationError: a value that is no number, or alpha in both options.
    """
    pairs = parse_pairs(given, "--parameter", "NAME=NUMBER", "gamma=1.5")
    if alpha is not None and "alpha" in pairs:
        raise ConfigurationError("Give alpha either as --alpha or as --parameter alpha=..., not as both.")
    values = {name: parse_value(text, f"--parameter {name}=") for name, text in pairs.items()}
    return values if alpha is None else {**values, "alpha": parse_value(alpha, "--alpha")}
