from __future__ import annotations

import json

from analysis.gaps import alone, mixed, unknown
from analysis.results import Results
from experiments import settings
from tests.analysis.result_files import losses, record, write_read


def test_a_cell_that_nothing_stands_beside_is_told(results):
    for block in ("one", "other"):
        write_read(results.root, block, [{"seed": 0, "condition": "full"}], reading="plays",
                   against=["adapted", "pretrained"] if block == "one" else ["one"])  # fmt: skip
    trained = results.root / "adapted" / "train" / "seed0" / "adapted"
    record(trained, name="adapted", model="smollm2-135m-instruct")  # to be trained is not enough
    (told,) = alone(Results(results.base))
    assert told.startswith("one: stands in no table of changes")
    assert told.endswith("run dvc repro read@adapted read@pretrained")


def test_two_number_formats_are_told_unless_params_asks_for_them(results):
    chosen = settings.load()
    for block in ("pretrained", "answers_full", "quest"):
        condition, against = "hard" if block == "quest" else "full", ["pretrained"]
        path = write_read(results.root, block, losses(condition, 0.125), reading="rivals",
                          against=against if block != "pretrained" else ())  # fmt: skip
        run = path.with_name("run.json")
        dtype = "bfloat16" if block == "pretrained" else "float32"
        run.write_text(json.dumps(json.loads(run.read_text()) | {"dtype": dtype}))
    (line,) = mixed(results, chosen)
    assert line.startswith("quest: rivals was read in float32 against bfloat16 of pretrained; ")


def test_a_kind_of_reading_without_a_table_is_told_and_stops_nothing(results):
    write_read(results.root, "mine", [{"seed": 0, "entropy": 2.0}], reading="own", kind="entropy")
    told = Results(results.base)
    assert all(frame.empty for frame in told.readings.values())
    (line,) = unknown(told)
    assert line.startswith("entropy: no table knows this kind of reading yet; its rows stand in ")
