"""Words that the strict reward tells apart by what they do in a text. English."""

from __future__ import annotations


def vocabulary(*lines: str) -> frozenset[str]:
    """The different words of some lines.

    >>> sorted(vocabulary("yes no", "no maybe"))
    ['maybe', 'no', 'yes']
    """
    return frozenset(word for line in lines for word in line.split())


def phrases(*texts: str) -> tuple[tuple[str, ...], ...]:
    """Some phrases, each as its words.

    >>> phrases("no wait", "scratch that")
    (('no', 'wait'), ('scratch', 'that'))
    """
    return tuple(tuple(text.split()) for text in texts)


YES = vocabulary("yes yeah yep true correct")
NO = vocabulary("no nope false incorrect not")
NOT_A_NO = vocabulary("doubt question problem one only sure certain matter")
"""Behind a "no" or a "not", what makes it another thing than an answer."""

LEAD = vocabulary(
    "well so um hmm oh ok okay i we think believe guess suppose would say that this the my your a",
    "an correct right final short answer is are was were be it they he she to in of question",
    "therefore thus hence honestly actually probably perhaps maybe possibly definitely absolutely",
    "certainly surely indeed just simply sure course option may might could likely but",
)
"""What may stand before an answer without being part of it."""

FUNCTION = vocabulary(
    "a an the of to in on at by for from with as and or but so if than then that this these those",
    "it its he him his she her they them their we us our you your i me my mine who whom whose",
    "which what when where why how is are was were be been being am do does did has have had",
    "having will would can could may might shall should must there here also about into over under",
    "between during not no",
)
"""What is in nearly every text."""

VERBS = vocabulary("is are was were am be has have had does do did will would can could")

NEGATIVE = vocabulary("not never neither nor except excluding unlike hardly doubt")
BARELY = vocabulary("only until just merely simply")
"""Behind a "not", what makes it no denial."""
ALL_BUT = frozenset(
    phrases(
        "anything but", "everything but", "all but", "other than", "rather than", "instead of",
        "apart from", "aside from", "far from", "no longer",
    )
)  # fmt: skip
"""Denials of two words."""
WRONG = vocabulary("wrong incorrect false out impossible")
"""Behind "is", what denies the words before it."""

RETRACTIONS = phrases(
    "no wait", "wait no", "scratch that", "strike that", "i take that back", "or rather",
    "on second thought", "on second thoughts", "let me correct",
)  # fmt: skip
"""What takes back all before it."""

LEAD_INS = phrases(
    "the correct answer is", "the right answer is", "the final answer is", "the answer is",
    "the answer was", "my answer is", "final answer", "answer", "it is", "it was", "that is",
    "that was", "this is", "this was", "they are", "they were", "he is", "he was", "she is",
    "she was",
)  # fmt: skip
"""What is taken off the beginning of an expected answer."""
ARTICLES = vocabulary("the a an")
ABOUT = vocabulary("about around approximately approx roughly circa typically")

ADJUNCT = vocabulary(
    "in on at by from of with for near who which where when because since as during after before"
)
"""What begins a detail rather than another item of a list."""
NOT_ANOTHER = vocabulary("so more less not thereabouts rather otherwise")
"""Behind an "or", what is no alternative."""

CONTRACTED_IS = vocabulary("it that what who there here where how he she this everything")
"""Words whose 's is an "is"; behind others it is possessive."""
SHORTENED = vocabulary("st dr mr mrs ms jr sr vs mt ft lt sgt prof gen col rev vol inc ltd corp ca")
"""Words whose full stop ends no sentence."""


# ---- beside an abstention ------------------------------------------------------------------------

DROPPED = vocabulary(
    "really honestly just simply actually truly quite entirely completely totally fully absolutely",
    "exactly particularly still currently frankly personally definitively definitely certainly yet",
    "ever even accurately reliably precisely confidently truthfully safely conclusively genuinely",
    "sincerely also unfortunately sadly regrettably altogether overly possibly",
)
"""Adverbs that change nothing: "I honestly don't know"."""

TALK = vocabulary(
    "happy glad assist assistance sorry apologies apologize apologise apology afraid please thank",
    "thanks question questions know known knows knowledge information exact specific ask asking",
    "asked consult check source sources expert experts help more details detail context clarify",
    "rephrase provide ai language model assistant human person personal certain certainty",
    "confidence confirm verify time moment honest hmm uh um ugh ah eh er erm huh wow ha lol wait",
    "tell able unable need try search look further available data training only one much very too",
    "any some many several different various theories theory opinions opinion views view debate",
    "people scientists researchers historians topic subject matter complex complicated interesting",
    "great good difficult hard tricky philosophical scientific else thing something anything such",
    "now always answers myself wrong mistaken yourself",
)
"""Words that answer no question."""

SUBORDINATE = vocabulary(
    "because since as without given due while although though if unless until when being despite"
)
"""What begins, at the beginning of a sentence, a clause that carries no answer."""
EXPLAINS = vocabulary("because since as due given unless until")
"""And what does so anywhere."""

SPEECH = vocabulary(
    "said says saying replied replies answered claimed claims wrote writes sang sings quote quoted",
    "titled song phrase words",
)
"""In front of an abstention, what makes it somebody else's."""
