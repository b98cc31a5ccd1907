"""How trained weights are read: a file a kind. Its ``parts`` gives names, and calls that give rows:
a killed run goes on from the last part that was finished."""

HELPERS = ("scoring", "subject")  # modules beside the kinds
