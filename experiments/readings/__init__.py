"""How trained weights are read: a file a kind. Its ``rows`` are of a point of its ``AXES``: a
killed run goes on from the last point that was finished."""

HELPERS = ("subject",)  # modules beside the kinds
