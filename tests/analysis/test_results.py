from pathlib import Path

from analysis.results import Results
from tests.analysis.result_files import row, write_topk


def test_a_cell_that_params_no_longer_names_is_left_out(tmp_path: Path) -> None:
    for cell in ("kept", "removed"):
        write_topk(tmp_path, [row(variant=cell)], cell=cell)
    assert set(Results(tmp_path).topk["cell"]) == {"kept", "removed"}
    assert set(Results(tmp_path, ["kept"]).topk["cell"]) == {"kept"}
