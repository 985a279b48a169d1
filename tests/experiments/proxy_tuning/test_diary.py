"""The style: what becomes of a story, sentence by sentence, and what counts as a page of a diary."""

import pytest

from lmcompose.experiments.proxy_tuning.diary import CLOSING, OPENING, as_diary, is_diary, whole_sentences
from tests.experiments.proxy_tuning.conftest import toy_stories


def told(sentences: str) -> str:
    """What becomes of `sentences` in a story of Tim."""
    page = as_diary(f"Once upon a time, there was a boy named Tim. {sentences}")
    assert page is not None
    return page.removeprefix(OPENING).removesuffix(CLOSING)


@pytest.mark.parametrize(
    ("sentence", "page"),
    [
        ("He saw his mom.", "I saw my mom."),
        ("Then Tim ran, and Tim fell.", "Then I ran, and I fell."),
        ("The dog liked Tim.", "The dog liked me."),
        ("Tim's dog saw her. Her cat saw her cat.", "My dog saw me. My cat saw my cat."),
        ("She told her to go. It was with her.", "I told me to go. It was with me."),
        ("They took their toys from them.", "We took our toys from us."),
        ('"He is Tim," Tim said. "She likes him!" he cried.', '"He is Tim," I said. "She likes him!" I cried.'),
        ("One day, a boy named Tim saw a dog named Max.", "Today, I saw a dog named Max."),
        ("Timmy saw a shelf there.", "Timmy saw a shelf there."),
    ],
)
def test_the_hero_tells_it_outside_of_quotation_marks(sentence: str, page: str) -> None:
    assert told(sentence) == page


def test_a_page_is_opened_and_closed_and_ends_with_a_whole_sentence() -> None:
    assert as_diary('A girl named Sue saw a cat. "Hi!" Sue said. "I am') == (
        'Dear diary,\nI saw a cat. "Hi!" I said.\nGood night, diary.'
    )


@pytest.mark.parametrize("story", ["", "A dog ran. It fell.", "One day, a girl named Lily", "There was a boy, Tim."])
def test_a_story_without_a_hero_or_a_sentence_has_no_page(story: str) -> None:
    assert as_diary(story) is None


def test_whole_sentences_do_not_end_in_the_middle_of_a_speech() -> None:
    assert whole_sentences('He ran. "Stop. Now') == "He ran."
    assert whole_sentences('He ran. "Stop." Mom') == 'He ran. "Stop."'
    assert whole_sentences("no end") == ""


def test_stories_are_no_diaries_and_their_pages_are() -> None:
    stories = toy_stories(100)
    pages = [as_diary(story) for story in stories]
    assert all(pages)
    assert sum(is_diary(page) for page in pages if page) >= 95
    assert not any(is_diary(story) for story in stories)


def test_someone_else_in_it_is_no_diary() -> None:
    assert is_diary(OPENING + 'I saw a cat. "He is mine," I said.')
    assert not is_diary(OPENING + "I saw a cat. He was big.")
    assert not is_diary("I saw a cat.")
    assert not is_diary(OPENING + "The cat was big.")
