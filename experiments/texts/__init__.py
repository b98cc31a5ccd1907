"""Texts: documents of a kind on three sides, as tokens of a model and as windows.

The stage `data` writes data/texts/<name>/; all else reads it. Test documents open for a final
reading alone.
"""

from experiments.texts.corpus import ROOT, SIDES
from experiments.texts.documents import (
    Document,
    documents,
    fingerprint,
    reading_windows,
    training_documents,
    training_windows,
)
