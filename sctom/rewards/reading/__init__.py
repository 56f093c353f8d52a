"""Reading a completion as a person would: what it answers, and whether it abstains.

words, numbers    one form for what reads alike
vocabulary        English words by what they do in a text
phrases           how people say that they do not know, in eight languages; phrasebook finds them
standing          whether an answer in a text is given, denied, one of several, or taken back
listing           whether a text names several candidates
choosing          which one it chooses where the question gives two
matching          whether a text gives an accepted answer
abstention        whether a text answers, abstains, or does both
"""
