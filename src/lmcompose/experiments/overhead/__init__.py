"""What a composition costs: parameters, training and decoding, counted from configurations, and measured."""

from lmcompose.experiments.overhead.parameters import composition_parameters
from lmcompose.experiments.overhead.report import overhead_report, worked_example

__all__ = ["composition_parameters", "overhead_report", "worked_example"]
