"""What the CALM paper (arXiv 2401.02412) reports, to stand beside our figures."""

KV_TASKS = {"kv_subs": "KV-SUBS", "num_math": "NUM-MATH", "kv_math": "KV-MATH"}
"""Table 1's tasks: keys to numbers, numbers to results, and what neither member can do: keys to results."""

KV_TABLE_1 = {
    "augmenting": {"kv_subs": 98.1, "num_math": 4.2, "kv_math": 0.7},
    "anchor": {"kv_subs": 0.0, "num_math": 73.7, "kv_math": 0.0},
    "composition": {"kv_subs": 92.9, "num_math": 72.0, "kv_math": 84.3},
}
"""Exact match in percent, by model and task."""

KV_MODELS = {
    "augmenting": "augmenting m_A",
    "anchor": "anchor m_B",
    "composition": "composition",
    "composition_mlp": "  two-layer proj",
    "random_augmenting": "  random m_A",
}
"""The rows of our Table 1 in order; a result may hold others, which follow under their own names. The indented ones
are variants of the composition. None is wider than 16 characters, so that the table fits a terminal of 80."""
