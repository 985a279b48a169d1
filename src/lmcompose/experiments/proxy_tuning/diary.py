"""A narrow style with a rule: a children's story retold as a page of its hero's diary.

The rule changes who speaks, in every sentence, and opens and closes the page; what happens stays. It is a few
replacements of words and not grammar, so that a page can be made from any story, and checked. This file knows neither
models nor tokens.
"""

import re

OPENING = "Dear diary,\n"
CLOSING = "\nGood night, diary."

_NAMED = re.compile(r"\b(?:an?|the|An?|The) (?:[\w'-]+ ){0,4}(?:named|called) (?P<hero>[A-Z][a-z]+)")
_THERE_WAS = re.compile(r"^(?:Once(?: upon a time)?|One day),? (?:there (?:was|lived)|in)[^.!?\"]*[.!?] *")
_TOLD = re.compile(r"\b(?:Once upon a time|One day|Once)\b")
_SENTENCE_END = re.compile(r'[.!?]"?(?=\s|$)')
_PRONOUNS = {
    "he": "I", "she": "I", "him": "me", "his": "my", "himself": "myself", "herself": "myself", "hers": "mine",
    "they": "we", "them": "us", "their": "our", "theirs": "ours", "themselves": "ourselves",
}  # fmt: skip
_PRONOUN = re.compile(rf"\b({'|'.join((*_PRONOUNS, 'her'))})\b(?!')", re.IGNORECASE)
_POSSESSED = re.compile(
    r" (?!(?:a|about|after|again|all|and|an|as|at|away|back|because|before|but|by|down|for|from|go|he|how|if|in|inside"
    r"|into|it|not|of|off|on|or|out|outside|she|that|the|there|they|to|too|up|very|was|we|were|what|when|where|while"
    r"|who|why|with)\b)[A-Za-z]"
)
"""What follows a "her" that is "his": a word that is none of those which follow one that is "him"."""
_BEFORE_SUBJECT = re.compile(
    r"\b(after|and|as|because|before|but|if|so|suddenly|that|then|when|where|while)$", re.IGNORECASE
)


def as_diary(story: str) -> str | None:
    """The page that `story` becomes, up to the end of its last whole sentence; None where it has no named hero.

    Outside of what is said in quotation marks, the hero's name and "he" or "she" become "I", "my" or "me", and "they"
    become "we". The sentence that introduces the hero is left out where it does nothing else.

    Example:
        >>> as_diary('One day, a boy named Tim saw a cat. "Hi!" Tim said. The cat liked his hat. It saw him.')
        'Dear diary,\\nToday, I saw a cat. "Hi!" I said. The cat liked my hat. It saw me.\\nGood night, diary.'
    """
    introduced = _NAMED.search(story)
    if introduced is None:
        return None
    hero, body = introduced["hero"], whole_sentences(story)
    parts = _THERE_WAS.sub("", body).split('"')
    parts[::2] = [_first_person(part, hero) for part in parts[::2]]
    told = '"'.join(parts).strip()
    return f"{OPENING}{told[0].upper()}{told[1:]}{CLOSING}" if told else None


def is_diary(text: str) -> bool:
    """Whether `text` keeps to the style: its opening, and outside of quotation marks no "he" or "she", and an "I"."""
    told = text.removeprefix(OPENING)
    outside = " ".join(told.split('"')[::2])
    others = re.search(r"\b(he|she|his|her|him)\b", outside, re.IGNORECASE)
    return text.startswith(OPENING) and others is None and re.search(r"\b(I|my|me|My)\b", outside) is not None


def whole_sentences(story: str) -> str:
    """`story` up to its last sentence end that is not inside quotation marks; "" where there is none."""
    ends = [match.end() for match in _SENTENCE_END.finditer(story)]
    return next((story[:end].strip() for end in reversed(ends) if story[:end].count('"') % 2 == 0), "")


def _first_person(part: str, hero: str) -> str:
    """One stretch of text outside of quotation marks."""
    part = _NAMED.sub(lambda match: hero if match["hero"] == hero else match.group(), part)
    return _TOLD.sub("Today", _PRONOUN.sub(_pronoun, re.sub(rf"\b{hero}('s)?\b", _hero, part)))


def _hero(match: re.Match[str]) -> str:
    """The hero's name: "my" for "Tim's", "I" where a sentence or clause begins, "me" after a verb or a preposition."""
    before = match.string[: match.start()].rstrip()
    begins = not before or before[-1] in ".!?\n"
    if match.group(1):
        return "My" if begins else "my"
    return "I" if begins or before[-1] == "," or _BEFORE_SUBJECT.search(before) else "me"


def _pronoun(match: re.Match[str]) -> str:
    word = match.group(1).lower()
    if word == "her":  # possessive before a noun, and an object before anything else
        new = "my" if _POSSESSED.match(match.string, match.end()) else "me"
    else:
        new = _PRONOUNS[word]
    return new.capitalize() if match.group(1)[0].isupper() else new
