"""The inside of the sandbox for model-written code; `lmcompose.evaluation.execution` is its outside.

These files run in a bare Python (-I -S) that knows nothing of lmcompose, so they import the standard library and each
other alone, and each other by relative imports.
"""
