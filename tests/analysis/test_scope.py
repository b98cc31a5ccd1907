"""How a run's scale is told."""

from __future__ import annotations

import json

from analysis.rules import decide
from tests.analysis.result_files import write_recipe
from tests.analysis.verdicts import CLAIMS


def test_a_trials_scale_is_its_own(results, settings):
    """Not that of the core stages."""
    trial = {"retrofit": {"steps": 180}, "seeds": [0, 1]}
    core = {
        "seed": 0,
        "protocol": {"context": 1024},
        "retrofit": {"steps": 16},
        "corpus": {"source": "plays"},
    }
    own = {"recipe": {"protocol": {"context": 2048}, "trials": {"prose": trial}}, "scale": "prose"}
    write_recipe(results.root, "prose", {"delta_most": 0.05})
    path = results.root / "recipe" / "prose" / "run.json"
    path.write_text(json.dumps({"stage": "recipe", "cell": "prose", "settings": core | own}))
    outcome = decide(CLAIMS["audit.10"], results, settings)
    assert outcome.scale == "prose; plays; T = 2048; 180 steps; seeds 0, 1"
