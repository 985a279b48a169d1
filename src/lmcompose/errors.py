"""Every error that a user can meet. Each message says what went wrong and what to do next.

The classes double as the built-in exception a caller would expect (`ValueError`, `OSError`), so code that knows
nothing of lmcompose still catches them. This file imports nothing from the project.
"""

import difflib
from collections.abc import Iterable


class LmcomposeError(Exception):
    """Base class of all errors that lmcompose raises on purpose."""


class ConfigurationError(LmcomposeError, ValueError):
    """An argument or a setting that cannot work, known before any weight is read."""


class RecipeError(ConfigurationError):
    """A recipe that does not parse or does not fit its schema; the message carries file and line."""


class MemberError(LmcomposeError, ValueError):
    """A model that cannot be a member of a composition."""


class TokenizerMismatchError(MemberError):
    """Members that read different tokens where the composition needs them to read the same."""


class WrongBaseError(MemberError):
    """A saved composition is being put on a base model that it was not trained on."""


class SavedFolderError(LmcomposeError, OSError):
    """A saved composition that is missing, cut short, or of a format that this version cannot read."""


class DataError(LmcomposeError, ValueError):
    """Composition data that cannot be used."""


class CacheError(LmcomposeError, RuntimeError):
    """A cache that does not belong to the composition or that was advanced without it."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """The hint `" Did you mean 'x'?"` for the choice nearest to `name`, or an empty string when none is near."""
    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""
