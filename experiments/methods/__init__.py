"""One registry of methods: a file here is a method, found by its name."""

HELPERS = ("base", "attending", "fixed", "passes")  # modules beside the methods
