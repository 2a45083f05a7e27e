"""Whether a server's text is language or garbage; judges a start's first answer and a load's answers.

It knows no language: numbers, JSON and code are as good as prose in any script. It refuses what broken sampling and
broken memory produce: control and replacement characters in bulk, one token repeated, nothing but marks and spaces, and
word salad, in which hardly a word comes twice. What can mislead: a text under `ENOUGH` words is never salad, so short
answers are judged together (`are_sane`); slightly wrong sampling passes; a list of forty-five unlike names fails.

    >>> fault("巴黎是法国的首都") is None
    True
    >>> fault("Paris" + 24 * "!")
    "'!' over and over"
"""

import re
import unicodedata

BULK = 0.02  # of the characters
ONE_TOKEN, TIMES = 0.75, 5  # of what is not space, and so often at least
LONGEST_TOKEN, LONGEST_RULE = 16, 80
# In 528 languages of the Declaration of Human Rights, 3 in 1,000 windows of 40 words have fewer repeated beginnings,
# and 1 in 10,000 of 60 words (1 in 25 in Hebrew); of random words nearly all do.
ENOUGH, REPEATED = 45, 0.04
CUT = "\ufffd"  # a text that ends inside a character ends in up to three of these
SHAPERS = "\u200c\u200d"  # joiners that belong to a word
# Scripts without spaces between words: each character counts as one.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
RULE = re.compile(rf"([-=_*#~.+|:─═])\1{{3,{LONGEST_RULE}}}(?!\1)")
AGAIN = re.compile(rf"(\S{{1,{LONGEST_TOKEN}}}?\s?)\1{{{TIMES - 1},}}")
STRANGE = ("Cc", "Cs", "Co", "Cn")


def is_sane(text: str) -> bool:
    """Whether `text` is no known kind of garbage."""
    return fault(text) is None


def are_sane(texts: list[str]) -> list[bool]:
    """`is_sane` of each of a load's answers; those too short for word salad are judged together for it."""
    short = [text for text in texts if len(units(text)) < ENOUGH]
    salad = is_salad("\n".join(short))
    return [is_sane(text) and not (salad and len(units(text)) < ENOUGH) for text in texts]


def fault(text: str) -> str | None:
    """What makes `text` garbage, in words; None where nothing does."""
    whole = text.removesuffix(CUT).removesuffix(CUT).removesuffix(CUT)
    strange = sum(character == CUT or _is_strange(character) for character in whole)
    if strange > BULK * len(whole):
        return f"{strange} of {len(whole)} are control or replacement characters"
    if not any(unicodedata.category(character)[0] in "LN" or ord(character) >= 0x1F000 for character in whole):
        return "no letter and no digit"
    if token := _one_token(whole):
        return f"{token!r} over and over"
    return f"of {len(units(whole))} words hardly one comes twice" if is_salad(whole) else None


def is_salad(text: str) -> bool:
    """Whether hardly a word of `text` begins like another one near it.

    Words of a language do within some forty words, function words and endings aside; words drawn at random do not."""
    begun = [_beginning(unit) for unit in units(text)]
    last = len(begun) - ENOUGH
    starts = sorted({*range(0, last + 1, ENOUGH), last}) if last >= 0 else []
    shares = [1 - len(set(begun[start : start + ENOUGH])) / ENOUGH for start in starts]
    return bool(shares) and sum(share < REPEATED for share in shares) > len(shares) / 2


def units(text: str) -> list[str]:
    """The words of a text in lower case, without digits and marks; of scripts without spaces the characters."""
    all_units, word = [], ""
    for character in f"{text} ":
        unspaced = UNSPACED.match(character)
        if not unspaced and (unicodedata.category(character)[0] in "LM" or character in SHAPERS):
            word += character
            continue
        all_units += [word.casefold()] if word else []
        all_units += [character] if unspaced and unicodedata.category(character)[0] == "L" else []
        word = ""
    return all_units


def _beginning(word: str) -> str:
    """The part of a word that its forms share: four letters, two syllables of Hangul."""
    composed = unicodedata.normalize("NFC", word)
    return composed[: 2 if "\uac00" <= composed[0] <= "\ud7a3" else 4]


def _one_token(text: str) -> str | None:
    """The token that most of `text` consists of; a table's rules and runs of digits do not count."""
    text = RULE.sub(lambda match: 3 * match[1], text) + " "
    length = len("".join(text.split()))
    for match in AGAIN.finditer(text):
        digits = {character for character in match[1] if character.isdigit()}
        if len(digits) < 2 and len("".join(match[0].split())) > ONE_TOKEN * length:
            return match[1].strip()
    return None


def _is_strange(character: str) -> bool:
    return unicodedata.category(character) in STRANGE and character not in "\t\n\r\f"
