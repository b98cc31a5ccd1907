"""Ways to keep groups of one size while routers learn (paper: Table 8): a file here is one, found
by its name.

Each says by which ``BALANCE`` the training gate runs under it; its ``install`` gives a regime
losses to add, something to do after each step, or hooks on the routers.
"""

HELPERS = ("auxiliary", "seen")  # modules beside the mitigations
