from __future__ import annotations

import re
import time

import pytest

from sctom.rewards.reading.abstention import Abstentions
from sctom.rewards.reading.matching import holds_answer
from sctom.rewards.selfaware import IDK_PATTERNS
from sctom.tasks.selfaware_source import IDK_SENTENCE, MATCHED_WORDINGS, UNMATCHED_WORDINGS

WHO = "Who won the battle?"


def stance(text, question=WHO, answers=(), **settings):
    return Abstentions(**settings).read(text, question, answers).stance


def lines(text):
    return [line.strip() for line in text.strip().splitlines()]


ABSTAINED = lines("""
    I do n't know.
    I don\u2019t know
    I dont know
    idk
    Unsure.
    Nobody knows.
    No idea.
    Who knows?
    Beats me.
    I'm not 100% sure.
    I'm really not entirely certain.
    I cannot answer that question.
    I'm unable to determine this.
    I wouldn't know.
    I couldn't tell you.
    I'd rather not guess.
    I can't do that.
    I have never heard of that battle.
    We may never know.
    It is not possible for me to know this.
    That's unknowable.
    This is beyond what I know.
    Scientists are still not sure.
    I don't know. If you can provide more details, I'd be happy to help!
    I do not have access to that information.
    We don't have a definitive answer.
    The winner of the battle is unknown.
    It remains a mystery.
    Your guess is as good as mine.
    "I don't know."
    My answer is "I don't know".
    Yes, I don't know.
    In general, I don't know.
    Sorry, I have no idea.
    I don't know who won the battle.
    I don't know if it was Napoleon.
    I'm not sure it was Napoleon.
    I don't know; nobody has ever found out.
    I don't know because the records were lost.
    I don't know. Please ask a historian.
    I don't know. Could you provide more context?
    As an AI language model, I don't have personal opinions.
    Because consciousness is subjective, I cannot say.
    That's a great question, but I don't know.
    Scientists have proposed many theories about the origin of it, but the answer is unknown.
    It was Napoleon... no wait, I don't know
    Napoleon. Actually, scratch that, I don't know.
    I don't know. I don't know. I don't know.
""")
HEDGED = lines("""
    I don't know. It was Napoleon, in 1804.
    I don't know, Napoleon.
    I don't know but Napoleon
    I don't know - Napoleon.
    I'm not sure, perhaps Napoleon.
    I'm not sure perhaps Napoleon
    Not sure. Napoleon?
    I do not know for sure, but probably Napoleon.
    It was Napoleon, but I'm not sure.
    Napoleon. I'm not sure.
    It was Napoleon, but I don't know.
    I think Napoleon, but I could be wrong.
    Nobody knows, but my guess is Napoleon.
    I don't know. 1804
    I don't know, yes
    Yes, but I'm not sure.
    No lo sé, pero creo que Napoleón.
    Je ne sais pas, peut-être Napoléon.
    Ich weiß nicht, vielleicht Napoleon.
    Não sei, talvez Napoleão.
    잘 모르겠지만 나폴레옹인 것 같아요.
    我不知道\uff0c可能是拿破仑。
    わかりません、たぶんナポレオンです。
""")
ANSWERED = lines("""
    It was Napoleon.
    Perhaps Napoleon.
    I can't believe you ask: it was Napoleon.
    I can't believe it's not butter
    I can't help but love Napoleon.
    I cannot lie: Napoleon.
    "I don't know" is what Socrates said.
    \u201cI don\u2019t know\u201d is what Socrates said.
    Socrates said I don't know.
    Hawaii cannot be it. Maui.
    With Wi-Fi can't work
    Gandhi do not know
    It is not surely Napoleon, but likely.
    The Unknown Soldier
    It was Napoleon, who is not known to have lied.
    I don't know about you, but it was Napoleon.
    He did not know the answer.
    Napoleon won. I don't know anything else about it.
    Napoleon. I don't know how tall he was.
    Es war Napoleon.
    El equipo no se rindió.
    나폴레옹입니다.
""")


@pytest.mark.parametrize(
    ("expected", "text"),
    [("abstained", t) for t in [*ABSTAINED, "I don't\nknow"]]
    + [("hedged", t) for t in [*HEDGED, "I don't know\nNapoleon"]]
    + [("answered", t) for t in [*ANSWERED, "", " \n"]],
)
def test_stance(expected, text):
    assert stance(text) == expected


REFERENCE_KINDS = lines("""
    The answer is unknown.
    The answer is uncertain.
    The answer is unclear.
    It is not known.
    I do not know the answer.
    I'm not sure.
    There is no definitive answer.
    There is much debate.
    There is no concrete answer to this question.
    It is impossible to answer.
    There is no known case.
    There is no public information available.
    There is no scientific evidence.
    There is no right answer.
    It is impossible to know.
    It is difficult to predict.
""")


@pytest.mark.parametrize(
    "text", [*REFERENCE_KINDS, *MATCHED_WORDINGS, *UNMATCHED_WORDINGS, IDK_SENTENCE]
)
def test_the_reference_phrases_of_selfaware_and_all_our_wordings(text):
    assert stance(text) == "abstained"


def test_of_the_19_patterns_only_bare_cannots_are_no_abstentions():
    missed = [p for p in IDK_PATTERNS if stance(f"{p[0].upper()}{p[1:]}.") != "abstained"]
    assert missed == ["i cannot", "i can't"]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "Das weiß ich leider nicht."), ("de", "Keine Ahnung, tut mir leid."),
        ("de", "Ich bin mir nicht sicher."), ("en", "I don't know."), ("es", "No lo se."),
        ("es", "Nadie lo sabe."), ("es", "No estoy seguro."), ("fr", "Je n\u2019en sais rien."),
        ("fr", "Désolé, je ne sais pas."), ("fr", "Je ne suis pas sûre."), ("ja", "分かりません。"),
        ("ja", "申し訳ありませんが、わかりません。"), ("ja", "自信がありません。"),
        ("ko", "모르겠습니다. 죄송합니다."), ("ko", "알 수 없습니다."),
        ("ko", "확실하지 않습니다."),
        ("pt", "Desculpe, não sei."), ("pt", "Não tenho certeza."),
        ("zh", "对不起\uff0c我不知道。"),
        ("zh", "無法確定。"), ("zh", "我不确定。"),
    ],
)  # fmt: skip
def test_languages(language, text):
    assert stance(text) == stance(text, languages=[language]) == "abstained"
    other = "zh" if language == "en" else "en"
    assert stance(text, languages=[other]) == "answered"


def test_phrases_of_ones_own():
    assert stance("Search me!") == "answered"
    assert stance("Search me!", phrases=["search me"]) == "abstained"
    assert stance("Well, search me. Napoleon?", phrases=["Search me."]) == "hedged"


def test_what_cannot_be_chosen():
    known = "known are de, en, es, fr, ja, ko, pt, zh. Did you mean 'ko'?"
    with pytest.raises(ValueError, match=re.escape(f"for the language 'kor'; {known}")):
        Abstentions(["kor"])
    with pytest.raises(ValueError, match=re.escape("the phrase '?!' has no words to look for")):
        Abstentions(phrases=["?!"])


def test_a_phrase_of_the_question_is_none_unless_it_is_all_that_is_said():
    question = "Why do people say I don't know?"
    assert stance("People say I don't know to gain time.", question) == "answered"
    assert stance("I don't know.", question) == "abstained"
    assert stance("I don't know why people say I don't know.", question) == "abstained"


def test_an_accepted_answer_may_read_like_an_abstention():
    assert stance("It is unclear.", "Can insects suffer?", ["yes"]) == "abstained"
    assert stance("It is unclear.", "Can insects suffer?", ["unclear"]) == "answered"
    song = "I Don't Know How to Love Him"
    assert stance(song, "Which song?", [song]) == "answered"
    assert stance("Nobody knows.", WHO, ["nobody"]) == "abstained"


def test_choices():
    question = "Which is older, Busan or Seoul?"
    assert stance("I don't know, Busan", question) == "hedged"
    assert stance("I don't know which is older, Busan or Seoul.", question) == "abstained"


def test_the_answer_is_what_is_left():
    read = Abstentions().read("I don't know if it is Busan, but maybe Seoul.")
    assert not holds_answer("", ["Busan"], read=read.answer)
    assert holds_answer("", ["Seoul"], read=read.answer)


@pytest.mark.parametrize(
    "piece",
    ["'", '"', " ", "\n", "a'", "1,", "1/", "one ", "hundred ", "서울", "no ", "is not known to ",
     "i do not have a ", "there is no a b c ", "beyond a b ", "<answer>", "but Seoul, ", "or ",
     "I don't know. ", "no wait ", "It's Seoul. ", "a.b.", "'a ", "-"],
)  # fmt: skip
def test_no_text_takes_long(piece):
    text = piece * (20_000 // len(piece))
    start = time.process_time()
    read = Abstentions(["en"]).read(text, WHO, ["Seoul"])
    holds_answer(text, ["Seoul", "the one thing that it is"], WHO, read=read.answer, max_words=None)
    assert time.process_time() - start < 15  # growing with the square it would be minutes


@pytest.mark.parametrize(
    ("text", "stance"),
    [
        ("Only time will tell.", "abstained"), ("N/A", "abstained"), ("(n/a)", "abstained"),
        ("Napoleon knew what I don't know.", "answered"),
        ("Napoleon? I wouldn't know.", "hedged"), ("Who? I don't know.", "abstained"),
    ],
)  # fmt: skip
def test_short_ways_out(text, stance):
    assert Abstentions().read(text, "Who was it?").stance == stance
