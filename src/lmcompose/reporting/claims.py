"""The claims of the two papers and of their reviews, each with the rule that judges it from our results."""

from collections.abc import Callable

from lmcompose.reporting.evidence import (
    NOT_SHOWN,
    OTHERWISE,
    SHOWN,
    WEAKER,
    Claim,
    Finding,
    Result,
    percent,
    plain,
    verdict,
)
from lmcompose.reporting.paper import KV_TABLE_1

TINY = "members of 3.8 and 6.6 million parameters, trained here; 25,000 keys, three operands"
DEMO = "members of 0.1 million parameters, trained here; 2,000 keys, two operands, one seed"
TINY_ONE = f"{TINY}, one seed"
PYTHON_PAIR = "Gemma 3 270M with SmolLM2 135M, Python sources, 24 steps"
PROSE_PAIR = "SmolLM2 135M with stories260K, prose, 24 steps"
CODE_PAIR = "Gemma 3 270M with SmolLM2 135M continued on Python, 48 steps, two seeds"
STORIES = "a base of 0.86 and a pair of 0.08 million parameters, trained here"
QWEN = "Qwen2.5-Coder 1.5B with the 0.5B pair, English to Somali, one seed"

Rule = Callable[[Result], Finding]


def joint_skill(paper: Result) -> Finding:
    """KV-MATH: the lower end of the composition against the upper ends of both members."""
    ours = paper["results"]["composition"]["kv_math"]
    low, high = ours["interval"]
    best = max(paper["results"][member]["kv_math"]["interval"][1] for member in ("augmenting", "anchor"))
    theirs = KV_TABLE_1["composition"]["kv_math"] / 100
    judged = NOT_SHOWN if low <= best else WEAKER if high < theirs else SHOWN
    return Finding(f"{percent((low, high), ours['accuracy'])} %, members at most {100 * best:.1f}", judged)


def kept_skills(paper: Result) -> Finding:
    """What each member could do: no smaller a share of it is kept than in the paper."""
    found, judged = [], SHOWN
    for task, member in (("kv_subs", "augmenting"), ("num_math", "anchor")):
        ours, alone = (paper["results"][name][task] for name in ("composition", member))
        found.append(f"{percent(ours['interval'], ours['accuracy'])} of {100 * alone['accuracy']:.1f}")
        if ours["interval"][1] < KV_TABLE_1["composition"][task] / KV_TABLE_1[member][task] * alone["accuracy"]:
            judged = WEAKER
    return Finding("; ".join(found), judged)


def random_augmenting(paper: Result) -> Finding:
    """KV-MATH with a random m_A against the real one."""
    real, random = (paper["results"][arm]["kv_math"] for arm in ("composition", "random_augmenting"))
    figures = f"{percent(random['interval'], random['accuracy'])} against {100 * real['accuracy']:.1f} %"
    return Finding(figures, SHOWN if real["interval"][0] > random["interval"][1] else NOT_SHOWN)


def wider(figure: Result) -> list[float]:
    """The wider of the intervals over the seeds and over the documents: either can be the one that hardly varies."""
    intervals: list[list[float]] = [each for each in (figure["seeds"], figure["documents"]) if each]
    return max(intervals, key=lambda each: each[1] - each[0])


def lower_bits_than(other: str) -> Rule:
    """Held-out bits per byte of a composition, minus those of `other`."""

    def rule(ablation: Result) -> Finding:
        minus = ablation["per_byte"]["minus"][other]
        low, high = wider(minus)
        return Finding(f"{plain((low, high), minus['mean'])} bits per byte", verdict((-high, -low)))

    return rule


def kept_before(forgotten: str) -> Rule:
    """Bits per byte of a composition on what the anchor could do before, minus those of the anchor."""

    def rule(ablation: Result) -> Finding:
        change = ablation["forgetting"][forgotten]["per_byte"]["gains"]["composition"]
        low, high = wider(change)
        return Finding(f"{plain((low, high), change['mean'])} bits per byte", verdict((-high, -low)))

    return rule


def more_chrf(task: str, label: str) -> Rule:
    """chrF1 of a model minus that of the anchor, on the same examples."""

    def rule(evaluation: Result) -> Finding:
        minus = evaluation["minus_first"][task][label]
        low, high = minus["documents"]
        return Finding(f"{plain((low, high), minus['mean'])} chrF1", verdict((low, high)))

    return rule


def worse_arm(arm: str) -> Rule:
    """KV-MATH of an arm minus that of the composition."""

    def rule(arms: Result) -> Finding:
        minus = arms["differences"][arm]["kv_math"]
        low, high = wider(minus)
        return Finding(f"{percent((low, high), minus['mean'], '+')} points", verdict((-high, -low)))

    return rule


def no_worse_arm(arm: str) -> Rule:
    """KV-MATH of an arm minus that of the composition, which is claimed to be no loss."""

    def rule(arms: Result) -> Finding:
        found = worse_arm(arm)(arms)
        return Finding(found.ours, OTHERWISE if found.verdict == SHOWN else NOT_SHOWN)

    return rule


def few_parameters(overhead: Result) -> Finding:
    """The worked example of the paper, counted."""
    share = next(row["percent"] for row in overhead["rows"] if row["name"] == "exact")
    return Finding(f"{share:.1f} %, counted in the same two models", SHOWN if share <= 1.5 else OTHERWISE)


HALF = 0.5
"""Above this, most of a gap is closed."""


def gap_closed(theirs: float, *keys: str) -> Rule:
    """(proxy - base) / (directly tuned - base), found under `keys`, against half."""

    def rule(result: Result) -> Finding:
        gap = _at(result, keys)["models"]["proxy"]["gap_closed"]
        interval = wider(gap)
        return Finding(f"{percent(interval, gap['mean'])} %", verdict([end - HALF for end in interval], theirs - HALF))

    return rule


def better_than(other: str, unit: str, *keys: str) -> Rule:
    """The loss of the proxy-tuned base against that of `other`: their intervals over documents must not touch."""

    def rule(result: Result) -> Finding:
        models = _at(result, keys)["models"]
        ours, theirs = models["proxy"]["loss"], models[other]["loss"]
        figures = f"{ours['mean']:.3f} against {theirs['mean']:.3f} {unit}"
        below = ours["documents"][1] < theirs["documents"][0]
        above = ours["documents"][0] > theirs["documents"][1]
        return Finding(figures, SHOWN if below else OTHERWISE if above else NOT_SHOWN)

    return rule


def best_alpha(*keys: str) -> Rule:
    """Where the sweep of alpha is best."""

    def rule(result: Result) -> Finding:
        best = _at(result, keys)["best"]["alpha"]["proxy"]["value"]
        return Finding(f"best alpha {best:g}", SHOWN if best == 1 else OTHERWISE)

    return rule


def behind_an_api(remote: Result) -> Finding:
    """Tokens from a base behind a server against the same composition in one process."""
    ways = remote["results"]
    proved = sum(way["certificate"]["tokens"] - way["certificate"]["unproved"] for way in ways)
    tokens = sum(way["certificate"]["tokens"] for way in ways)
    wrong = sum(way["certificate"]["exact"] and not all(text["same"] for text in way["compared"]) for way in ways)
    figures = f"{proved} of {tokens} tokens proved exact, {wrong} certificates wrong"
    return Finding(figures, OTHERWISE if wrong or not proved else SHOWN)


def _at(result: Result, keys: tuple[str, ...]) -> Result:
    for key in keys:
        result = result[key]
    return result


DIARY, DOCUMENTATION = ("tasks", "diary"), ("tasks", "documentation")
NATS, BITS = "nats per token", "bits per character"

CLAIMS = (
    Claim(
        "CALM, table 1", "a composition does what neither member can", "84.3 %, members at most 0.7; PaLM 2",
        TINY, ("kv_arithmetic/paper",), joint_skill,
    ),
    Claim(
        "CALM, table 1", "and keeps what each member could do", "92.9 of 98.1; 72.0 of 73.7",
        TINY, ("kv_arithmetic/paper",), kept_skills,
    ),
    Claim(
        "CALM, table 5", "with a random m_A the gain goes", "lower",
        TINY, ("kv_arithmetic/paper",), random_augmenting,
    ),
    Claim(
        "CALM, table 5", "with a random m_A the gain goes (text)", "lower",
        PYTHON_PAIR, ("ablations/gemma-python",), lower_bits_than("random"),
    ),
    Claim(
        "CALM, table 5", "with a random m_A the gain goes (text)", "lower",
        PROSE_PAIR, ("ablations/smollm-prose",), lower_bits_than("random"),
    ),
    Claim(
        "CALM, table 5", "with a random m_A the gain goes (code)", "lower",
        CODE_PAIR, ("ablations/code",), lower_bits_than("random"),
    ),
    Claim(
        "CALM, section 4", "the composition is better than the anchor (code)", "40 % relative, code completion",
        CODE_PAIR, ("ablations/code",), lower_bits_than("anchor"),
    ),
    Claim(
        "CALM, section 4", "and says better what a function does", "better, code to text",
        f"{CODE_PAIR}, one of them", ("evaluation/code-to-text",), more_chrf("code_to_text", "composition"),
    ),
    Claim(
        "CALM, section 4", "and better than the augmenting model (code)", "on most tasks",
        CODE_PAIR, ("ablations/code",), lower_bits_than("alone augmenting"),
    ),
    Claim(
        "CALM, section 4", "what the anchor could do is kept (code; English prose)", "no forgetting",
        CODE_PAIR, ("ablations/code",), kept_before("prose-heldout"),
    ),
    Claim(
        "CALM, table 5", "LoRA on the anchor, with as many parameters, does less (code)", "lower",
        CODE_PAIR, ("ablations/code",), lower_bits_than("lora"),
    ),
    Claim(
        "CALM, section 4", "the composition is better than the anchor", "up to 13 points; 40 % on code, relative",
        PYTHON_PAIR, ("ablations/gemma-python",), lower_bits_than("anchor"),
    ),
    Claim(
        "CALM, section 4", "the composition is better than the anchor", "up to 13 points; 40 % on code, relative",
        PROSE_PAIR, ("ablations/smollm-prose",), lower_bits_than("anchor"),
    ),
    Claim(
        "CALM, section 4", "and better than the augmenting model", "on most tasks",
        PYTHON_PAIR, ("ablations/gemma-python",), lower_bits_than("alone augmenting"),
    ),
    Claim(
        "CALM, section 4", "and better than the augmenting model", "on most tasks",
        PROSE_PAIR, ("ablations/smollm-prose",), lower_bits_than("alone augmenting"),
    ),
    Claim(
        "CALM, table 5", "an m_A that only encodes the prompt is worse", "lower",
        DEMO, ("kv_arithmetic/roads",), worse_arm("encoder"),
    ),
    Claim(
        "CALM, table 5", "an m_A that only encodes the prompt is worse", "lower",
        TINY_ONE, ("kv_arithmetic/ablations",), worse_arm("encoder"),
    ),
    Claim(
        "CALM, table 5", "with a vanilla m_A (wrong values) the gain goes", "lower",
        TINY_ONE, ("kv_arithmetic/ablations",), worse_arm("vanilla"),
    ),
    Claim(
        "CALM, table 5", "LoRA on the anchor, with as many parameters, does less", "lower",
        TINY_ONE, ("kv_arithmetic/ablations",), worse_arm("lora"),
    ),
    Claim(
        "CALM, reviews", "composition data of substitution alone would do", "the paper and the reply differ",
        TINY_ONE, ("kv_arithmetic/ablations",), no_worse_arm("substitution_only"),
    ),
    Claim(
        "CALM, rebuttal", "few parameters are added: BERT-small to BERT-large", "15 M of 1 B, 1.5 %",
        "the same two models, nothing trained", ("overhead/worked_example",), few_parameters,
    ),
    Claim(
        "Proxy-tuning, section 3", "most of the gap to direct tuning is closed (style)", "91.1 % (13B), 88.1 % (70B)",
        STORIES, ("proxy_tuning/stories",), gap_closed(0.881, *DIARY),
    ),
    Claim(
        "Proxy-tuning, section 3", "most of the gap to direct tuning is closed (domain)", "91.1 % (13B), 88.1 % (70B)",
        STORIES, ("proxy_tuning/stories",), gap_closed(0.881, *DOCUMENTATION),
    ),
    Claim(
        "Proxy-tuning, section 3", "most of the gap to direct tuning is closed (language)",
        "91.1 % (13B), 88.1 % (70B)", QWEN, ("proxy_translation/som",), gap_closed(0.881),
    ),
    Claim(
        "Proxy-tuning, section 3", "the proxy-tuned base beats the small expert", "on nearly every task",
        STORIES, ("proxy_tuning/stories",), better_than("expert", NATS, *DIARY),
    ),
    Claim(
        "Proxy-tuning, section 3", "the proxy-tuned base beats the small expert", "on nearly every task",
        QWEN, ("proxy_translation/som",), better_than("expert", BITS),
    ),
    Claim(
        "Proxy-tuning, reviews", "the difference is needed, the expert alone does not do", "asked, not measured",
        STORIES, ("proxy_tuning/stories",), better_than("expert_only", NATS, *DIARY),
    ),
    Claim(
        "Proxy-tuning, reviews", "the difference is needed, the expert alone does not do", "asked, not measured",
        QWEN, ("proxy_translation/som",), better_than("expert_only", BITS),
    ),
    Claim(
        "Proxy-tuning, section 2", "alpha = 1 needs no tuning", "1 throughout",
        STORIES, ("proxy_tuning/stories",), best_alpha(*DIARY),
    ),
    Claim(
        "Proxy-tuning, section 2", "alpha = 1 needs no tuning", "1 throughout",
        QWEN, ("proxy_translation/som",), best_alpha(),
    ),
    Claim(
        "Proxy-tuning, section 6", "a base behind an API can be proxy-tuned", "one token, GPT-3.5",
        "SmolLM2 135M behind vLLM, whole texts", ("remote/vllm",), behind_an_api,
    ),
)  # fmt: skip
"""In the order of the page."""
