"""What becomes of an error in a command: one line on stderr, and an exit code that a script can act on.

2 bad input (arguments, recipe, models, data), 1 any other failure, 130 Ctrl-C. `--debug` shows the traceback instead.
"""

import errno
import re
from typing import Any

import typer
from typer.core import TyperGroup

from lmcompose.errors import ConfigurationError, DataError, LmcomposeError, MemberError

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130

# typer carries its own copy of click, or click itself, depending on its version; this is the class in either.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The group of all verbs, which turns exceptions into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as interrupt:
            # A run that stopped politely says how to go on, and whether it was Ctrl-C or SIGTERM.
            fail(str(interrupt) or "Interrupted.", getattr(interrupt, "exit_code", INTERRUPTED))
        except UsageError as error:
            verb = getattr(getattr(error, "ctx", None), "command_path", "lmcompose")
            fail(f"{error.format_message()} See '{verb} --help'.", BAD_INPUT)  # type: ignore[attr-defined]
        except Exception as error:
            if ctx.params.get("debug") or (isinstance(error, OSError) and error.errno == errno.EPIPE):
                raise
            fail(*_message_and_code(error))


def fail(message: str, code: int) -> None:
    """Print one line on stderr and leave; where a message shows a text with a caret under it, that stays below."""
    pointer = re.search(r"\n( [^\n]*\n *\^)$", message)
    problem = message[: pointer.start()] if pointer else message
    typer.echo(f"lmcompose: {' '.join(problem.split())}" + (f"\n{pointer[1]}" if pointer else ""), err=True)
    raise typer.Exit(code)


def _message_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, ConfigurationError | MemberError | DataError):
        return str(error), BAD_INPUT
    if isinstance(error, LmcomposeError):
        return str(error), FAILURE
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{said} (unexpected; run `lmcompose --debug ...` to see where)", FAILURE
