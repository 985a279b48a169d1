"""Key-value arithmetic: the CALM paper's section 4.1, from nothing, with no download."""

from lmcompose.experiments.kv_arithmetic.run import run

__all__ = ["run"]
