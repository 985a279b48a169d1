"""Small result dicts in the form that each experiment and benchmark writes."""

from lmcompose.evaluation.statistics import score


def kv_result():
    return {
        "what": "kv_arithmetic",
        "profile": "small",
        "command": "lmcompose demo",
        "results": {
            "augmenting": {"kv_subs": score(982, 1000), "num_math": score(0, 1000), "kv_math": score(1, 1000)},
            "anchor": {"kv_subs": score(0, 1000), "num_math": score(991, 1000), "kv_math": score(0, 1000)},
            "composition": {"kv_subs": score(930, 1000), "num_math": score(985, 1000), "kv_math": score(861, 1000)},
            "random_augmenting": {"kv_math": score(4, 1000)},
        },
        "probe": {"layer 2": [0.9, 0.8, 0.7], "layer 4": [0.99, 0.9, 0.85]},
        "stages": [{"name": "m_A", "seconds": 1234.0}, {"name": "composition", "seconds": 3000.0}],
        "seeds": [0],
    }


def decode_result():
    def row(dtype, prompt, batch, ratio):
        return {
            "dtype": dtype,
            "prompt": prompt,
            "batch": batch,
            "seconds_per_token": {"anchor": 0.010, "augmenting": 0.004, "composition": 0.014 * ratio},
            "ratio": ratio,
            "step_ratio": ratio + 0.01,
            "growth": {"composition": 1.02, "members": 1.01},
        }

    return {
        "what": "decode_benchmark",
        "new_tokens": 128,
        "members": "llama 8 x 512 and llama 8 x 256",
        "threads": 1,
        "device": "cpu",
        "results": [row(d, p, b, 1.05 + 0.01 * b) for d in ("bfloat16", "float32") for p in (64, 512) for b in (1, 8)],
    }


def train_result():
    return {
        "what": "train_benchmark",
        "batch": 8,
        "length": 256,
        "dtype": "bfloat16",
        "results": {
            "calm": {
                "parameters": 1_000_000, "seconds_per_step": 2.0, "peak_bytes": 3 * 2**30, "step_bytes": 2**30,
            },
            "lora": {
                "parameters": 999_000, "seconds_per_step": 2.5, "peak_bytes": 4 * 2**30, "step_bytes": 2 * 2**30,
                "rank": 17,
            },
            "ratio": {"seconds_per_step": 0.8, "peak_bytes": 0.75, "step_bytes": 0.5},
        },
    }  # fmt: skip


def stories_result():
    return {
        "what": "stories",
        "text": "held-out prose",
        "seeds": [0, 1, 2],
        "results": {
            "anchor": {"title": "anchor alone", "losses": [3.1, 3.1, 3.1]},
            "pretrained": {"title": "pretrained m_A", "losses": [2.5, 2.6, 2.7]},
            "random": {"title": "random m_A", "losses": [2.7, 2.8, 2.9], "minus_pretrained": [0.2, 0.1, 0.3]},
        },
    }
