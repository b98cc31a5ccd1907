"""What groups tell of a token, and of the groups of another training."""

from __future__ import annotations

import pytest

from analysis import contents
from analysis.figures.groups import told
from analysis.rows import Missing
from tests.analysis.group_files import write_information

GROUPS = "aabbccddaabbccdd"
RENAMED = GROUPS.translate(str.maketrans("abcd", "bcda"))
OTHER = "abcdbcdacdabdabc"


def test_the_mean_over_documents_of_each_label(results):
    assert contents.information(results).empty
    with pytest.raises(Missing):
        told(results)
    write_information(results.root, "held", GROUPS, GROUPS)
    frame = contents.information(type(results)(results.base)).set_index(["about", "layer"])
    assert frame.loc[("speech", "all"), "information"] == pytest.approx(0.25)
    assert frame.loc[("speech", 1), "documents"] == 2
    assert set(frame.reset_index()["about"]) == set(contents.LABELS)


def test_groups_of_another_training_are_the_same_under_other_names(results):
    write_information(results.root, "held", GROUPS, GROUPS)
    write_information(results.root, "held_again", RENAMED, RENAMED)
    write_information(results.root, "held_tuned", OTHER, GROUPS)
    frame = contents.information(results)
    own = frame[frame["layer"] == "all"].set_index("about")
    assert own.loc["held_again", "information"] == pytest.approx(1)
    assert own.loc["held_tuned", "information"] < 0.5
    assert told(results) is not None
