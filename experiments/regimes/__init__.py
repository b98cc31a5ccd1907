"""One registry of training regimes: a file here is a regime, found by its name."""

HELPERS = ("base", "fitting", "tensors")  # modules beside the regimes
