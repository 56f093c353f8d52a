"""How people say that they do not know, in eight languages.

English is given as regular expressions over words as `sctom.rewards.reading.words` writes them
(contractions written out, "one" as "1" where it counts), without the adverbs of
`sctom.rewards.reading.vocabulary.DROPPED`. Other languages are given as plain phrases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sctom.rewards.reading.vocabulary import vocabulary

_FIND_OUT = (
    "(?:know|say|tell|answer|determine|predict|provide|give|offer|find|recall|remember|confirm|"
    "verify|guess|speculate|identify|name|state|pinpoint|estimate|judge|assess|speak|comment|"
    "ascertain|establish|explain|respond|compute|calculate|discern|help(?! but)|assist|share|"
    "access|make (?:a|any)|be (?:sure|certain)|do (?:that|this|so|it))"
)
_FOUND_OUT = (
    "(?:known|determined|answered|predicted|established|verified|confirmed|ascertained|proven|"
    "settled|resolved|recorded|disclosed|revealed|published|found|decided|measured)"
)
_KNOWLEDGE = (
    "(?:answers?|evidence|information|knowledge|data|records?|consensus|agreement|proof|idea|clue|"
    "memory|recollection|opinions?|access|feelings?|preferences?|experiences?|context|details|"
    "known case|way of knowing|means of knowing)"
)
_GRASP = "(?:knowledge|understanding|expertise|comprehension)"
_OPEN = "(?:unknown|unknowable|unclear|uncertain|unanswerable|undetermined|unresolved)"
_WE = "(?:i|we|one|1)"
_ALL_OF_US = "(?:i|we|scientists|historians|experts|researchers)"
_NOBODY = "(?:nobody|no one|no body)"
_VERY = "(?:(?:100|very|too|so|that|all that) )?"

_UNKNOWN = (
    rf"(?<!what ){_ALL_OF_US} do not know"
    r"(?! for (?:sure|certain)| about you| (?:anything|much) (?:else|more))",
    r"i (?:do not|can not) (?:recall|remember|understand the question)",
    r"i would not know",
    r"(?:i|we) (?:may|might|will) never know",
    r"(?:beyond|outside) (?:what|anything) (?:i|we) know",
    r"^do not know",
    r"i do not (?:think|believe) (?:i|anyone|anybody|we) (?:knows?|can|could)",
    r"i doubt (?:that )?(?:anyone|anybody) (?:knows|can|could)",
    r"not something (?:i|we) (?:know|can)",
    rf"(?:{_NOBODY}|god|heaven|goodness) knows",
    r"^who knows",
    rf"{_NOBODY} (?:can|could|will|would|has|is able to) {_FIND_OUT}",
    rf"{_NOBODY} has (?:{_FOUND_OUT}|found out)",
    rf"(?:{_WE}|you) (?:can|could) not {_FIND_OUT}",
    rf"{_WE} (?:am|are|is) (?:unable|not able) to",
    rf"(?:can|could) not be {_FOUND_OUT}",
    rf"(?:is|are|was|were|remains?) {_OPEN}",
    r"(?:is|are|remains?) (?:a|an) (?:mystery|enigma|open question)",
    rf"(?:is|are|was|were) not (?:{_FOUND_OUT}|clear|certain|knowable|answerable|available)"
    r"(?! (?:to|for|as) )",
    rf"(?:has|have) (?:never|not) been {_FOUND_OUT}",
    rf"(?:impossible|not possible|no way|hard|difficult|too early|too soon)"
    rf"(?: for \w+)? to {_FIND_OUT}",
    rf"(?:there is|there are|i have|we have|has|have) no (?:\w+ ){{0,3}}{_KNOWLEDGE}",
    rf"^no (?:\w+ ){{0,2}}{_KNOWLEDGE}",
    rf"{_WE} (?:do not have|lack|have not got|have not) (?:\w+ ){{0,4}}{_KNOWLEDGE}",
    r"does not have (?:\w+ ){0,3}answer",
    rf"(?:not enough|insufficient) {_KNOWLEDGE}",
    rf"(?:beyond|outside) (?:\w+ ){{0,5}}{_GRASP}",
    r"(?:beyond|outside) (?:my|our|human) (?:\w+ )?(?:abilit(?:y|ies)|capabilit(?:y|ies)|reach)",
    rf"{_WE} have (?:never|not) heard of",
    r"i am (?:not familiar|unfamiliar|not aware|stumped|clueless|at a loss)",
    r"i have not the (?:faintest|foggiest|slightest)",
    r"would be (?:(?:a|pure|mere|only a) )?(?:guess|guesswork|speculation)",
    r"your guess is as good as mine",
    r"anyone guess",
    r"^(?:only )?time will tell",
    r"beats me",
    r"i would (?:rather not|prefer not to) (?:guess|say|answer|speculate)",
    r"(?:much|open to|up for|a matter of|some) debate",
    r"(?:is|are|remains?|highly|widely|hotly) (?:debated|disputed|contested)",
    r"answer unknown",
    r"^(?:unknown|unanswerable|not known|not answerable)",
)
_UNSURE = (
    rf"(?:{_WE}|{_ALL_OF_US}) (?:am|are|feel) (?:not|far from) {_VERY}"
    r"(?:sure|certain|confident|positive)"
    r"(?! why you)",
    rf"{_WE} (?:am|are|feel) (?:unsure|uncertain|doubtful|undecided)",
    rf"^not {_VERY}(?:sure|certain)",
    r"^(?:unsure|uncertain)",
    r"not know for (?:sure|certain)",
    r"i (?:could|may|might) be (?:wrong|mistaken)",
    r"i have (?:my )?doubts",
    r"not quote me",
    r"grain of salt",
)
UNSURE_HINT = "sure|certain|confident|positive|doubt|undecided|wrong|mistaken|quote|salt"
"""Each of the unsure has one of these: without any, they need not be looked for."""
ENGLISH: Mapping[str, tuple[str, ...]] = {"unknown": _UNKNOWN, "unsure": _UNSURE}
""""^" stands for the beginning of a clause. Behind an answer, in a sentence of its own, an
"unknown" takes the answer back and an "unsure" does not."""

REASON = (
    rf"no (?:\w+ ){{0,2}}(?:{_KNOWLEDGE}|way)",
    rf"{_NOBODY} (?:has|can|could)",
    rf"{_WE} (?:do|did|can|could|have|am|are) not",
    r"(?:depends|depend|disagree|subjective|hypothetical|speculative|opinions?|ambiguous|vague)",
    r"(?:varies|vary)",
    r"nothing to say",
    r"(?:in|about) the future",
)
"""What makes a clause, beside an abstention, a reason for it."""

ASKS = (
    "please", "could you", "can you", "would you", "do you", "are you", "feel free", "let me know",
    "you can", "you could", "you may", "you might", "you should", "i recommend", "i suggest",
    "i would recommend", "i would suggest", "try", "is there anything", "i encourage",
)  # fmt: skip
"""How a clause begins, beside an abstention, that asks for something or refers elsewhere."""

CONTRASTS = ("but", "however", "though", "although")
MARKERS = (
    *CONTRASTS, "perhaps", "maybe", "probably", "likely", "i think",
    "i guess", "i believe", "i would say", "i would guess", "my guess", "my best guess",
    "best guess", "it could be", "it might be", "it may be", "if i had to", "the answer is",
    "it is", "it was",
)  # fmt: skip
"""What begins another clause without punctuation."""
NOT_MARKED = {
    "it": vocabulary(
        "if whether that what who where when why how which know sure certain as think believe say"
    ),
    "the": vocabulary("what that if whether know sure think believe"),
    "i": vocabulary("as and than that not"),
} | dict.fromkeys(
    ("perhaps", "maybe", "probably", "likely"),
    vocabulary("i we not can could is was are do may might more most very"),
)
"""First word of a marker -> behind which words it begins nothing."""


@dataclass(frozen=True)
class Language:
    """How one language says that it does not know, in plain phrases."""

    unknown: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    """Apologies and the like."""
    markers: tuple[str, ...] = ()
    """What "but", "perhaps" and "I think" are called."""


def _language(unknown: str, *, unsure: str, fillers: str, markers: str) -> Language:
    """Each is a list with commas."""
    lists = (unknown, unsure, fillers, markers)
    return Language(*(tuple(part.strip() for part in text.split(",")) for text in lists))


LANGUAGES: Mapping[str, Language] = {
    "de": _language(
        """ich weiß nicht, ich weiß es nicht, ich weiß das nicht, weiß ich nicht, weiß ich leider
        nicht, keine ahnung, ich kann das nicht beantworten, ich kann das nicht sagen, ich kann
        diese frage nicht beantworten, ich kann es nicht sagen, niemand weiß, weiß niemand, man
        weiß es nicht, wissen wir nicht, wir wissen es nicht, ist unbekannt, ist nicht bekannt,
        mir nicht bekannt, nicht zu beantworten, lässt sich nicht sagen, unmöglich zu sagen, es
        gibt keine antwort, es gibt keine eindeutige antwort, ich bin überfragt, ich habe keine
        information, ich habe keine informationen, ich kenne die antwort nicht""",
        unsure="""ich bin mir nicht sicher, ich bin nicht sicher, nicht sicher, ich bin unsicher,
        bin mir unsicher, ich weiß nicht genau""",
        fillers="es tut mir leid, tut mir leid, entschuldigung, leider, das, die frage",
        markers="aber, jedoch, vielleicht, ich glaube, ich denke, wahrscheinlich, vermutlich",
    ),
    "en": Language(),
    "es": _language(
        """no lo sé, yo no sé, no sé la respuesta, no sé quién, no sé qué, no sé cuál, no sé dónde,
        no sé cuándo, no sé cómo, no sé cuánto, no se sabe, no sabemos, nadie sabe, nadie lo sabe,
        no tengo idea, no tengo ni idea, ni idea, desconozco, se desconoce, no puedo responder,
        no puedo contestar, no puedo decir, no puedo saber, no hay respuesta, es imposible saber,
        imposible de saber, no es posible saber, no conozco la respuesta, no sabría decir,
        no tengo información, no tengo esa información, es desconocido, es desconocida""",
        unsure="no estoy seguro, no estoy segura, no estoy muy seguro, no estoy muy segura",
        fillers="lo siento, perdón, disculpa, disculpe, disculpas, lamentablemente",
        markers="pero, aunque, quizás, quizá, tal vez, creo que, probablemente",
    ),
    "fr": _language(
        """je ne sais pas, je ne le sais pas, je sais pas, j'ignore, je n'en sais rien,
        je ne peux pas répondre, je ne peux pas le dire, je ne connais pas la réponse,
        je ne saurais dire, personne ne sait, personne ne le sait, on ne sait pas,
        nous ne savons pas, on l'ignore, aucune idée, impossible de savoir, impossible de dire,
        impossible à dire, impossible de répondre, il n'y a pas de réponse, est inconnu,
        est inconnue, n'est pas connu, n'est pas connue, je n'ai pas d'information,
        je n'ai pas la réponse""",
        unsure="""je ne suis pas sûr, je ne suis pas sûre, je ne suis pas certain,
        je ne suis pas certaine, pas sûr, pas sûre""",
        fillers="désolé, désolée, pardon, malheureusement, excusez-moi, je suis",
        markers="mais, cependant, peut-être, je crois, je pense, probablement",
    ),
    "ja": _language(
        """わかりません, 分かりません, わからない, 分からない, 知りません, 知らない, 存じません,
        不明です, 答えられません, お答えできません, 判断できません, 定かではありません,
        答えはありません, 情報がありません""",
        unsure="自信がありません, 自信はありません, 確かではありません, 確信が持てません",
        fillers="""すみません, 申し訳ありません, 申し訳ございません, ごめんなさい, 残念ながら,
        が""",
        markers="けれど, けど, しかし, でも, たぶん, おそらく, 多分",
    ),
    "ko": _language(
        """모르겠, 모릅니다, 모른다, 모르네요, 몰라, 잘 모르, 알 수 없, 알 수가 없, 알지 못,
        알려지지 않, 알려져 있지 않, 답할 수 없, 답변할 수 없, 답변드릴 수 없, 알 길이 없,
        말씀드릴 수 없, 정답이 없, 답이 없, 정보가 없, 정보가 부족, 아무도 모르""",
        unsure="확실하지 않, 확실치 않, 확신할 수 없, 자신이 없",
        fillers="죄송합니다, 죄송해요, 미안합니다, 미안해요, 죄송, 미안, 안타깝게도",
        markers="지만, 그러나, 아마",
    ),
    "pt": _language(
        """não sei, não o sei, não faço ideia, não tenho ideia, não tenho a menor ideia,
        ninguém sabe, não é possível saber, é impossível saber, é impossível dizer,
        não posso responder, não consigo responder, não sei dizer, não posso dizer, desconheço,
        não se sabe, não há resposta, não sabemos, não conheço a resposta, não tenho informação,
        não tenho informações, é desconhecido, é desconhecida""",
        unsure="não tenho certeza, não tenho a certeza, não estou certo, não estou certa",
        fillers="desculpe, desculpa, desculpas, sinto muito, lamento, infelizmente",
        markers="mas, porém, talvez, acho que, creio que, provavelmente",
    ),
    "zh": _language(
        """不知道, 不清楚, 不晓得, 不曉得, 无法回答, 無法回答, 无法确定, 無法確定, 无法得知,
        無法得知, 无法知道, 無法知道, 无从得知, 無從得知, 不得而知, 没有答案, 沒有答案,
        没人知道, 沒人知道, 没有人知道, 沒有人知道, 答案未知, 答不上来, 尚无定论, 尚無定論""",
        unsure="不确定, 不確定, 说不准, 說不準, 没有把握, 沒有把握",
        fillers="对不起, 對不起, 很抱歉, 抱歉, 不好意思, 我, 这个问题, 這個問題",
        markers="但是, 但, 不过, 不過, 可能, 也许, 也許, 大概",
    ),
}
"""Code of the language -> its phrases."""
