"""params.yaml as frozen, validated values: the one place where settings are read.

`python -m experiments.settings` validates the file and says what it holds; every stage calls
:func:`load` before it does anything else, so nonsense is refused before anything runs.
"""

from experiments.settings.blocks import (
    Affinity,
    Benchmarks,
    Chat,
    Contents,
    Copying,
    Groups,
    Induction,
    Information,
    Leak,
    Perplexity,
    Picture,
    Positions,
    Reading,
    Ruler,
    Texts,
    Tolerances,
    Windows,
)
from experiments.settings.experiment import (
    Budget,
    Centroids,
    Distil,
    Experiment,
    Joint,
    Lora,
    Mask,
    Training,
)
from experiments.settings.file import SCALES, Settings, load, parse
from experiments.settings.measurements import (
    Continuation,
    Decode,
    DecodeRouting,
    Exactness,
    Masks,
    Speed,
    Whole,
)
from experiments.settings.schema import read_yaml
