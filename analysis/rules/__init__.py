"""Rules of the claims ledger. Importing the package registers all of them."""

from importlib import import_module
from pkgutil import iter_modules

from analysis.rules.registry import RULES, Outcome, Verdict, decide, rule

for each in iter_modules(__path__):
    import_module(f"{__name__}.{each.name}")
