import pytest
import torch

from tests.composability.clients import CLIENTS
from tests.composability.contract import CONTRACT, MODES, PAGE, Equal, Refused, rendered

CELLS = [(client, mode) for client in CONTRACT for mode in MODES]


@pytest.mark.parametrize(("client", "mode"), CELLS, ids=[f"{c}-{m}" for c, m in CELLS])
def test_cell(client: str, mode: str) -> None:
    cell = CONTRACT[client][1][MODES.index(mode)]
    if isinstance(cell, Refused):
        with pytest.raises(Exception, match=cell.names):
            CLIENTS[client](mode)
        return
    found, plain = CLIENTS[client](mode)
    assert found.shape == plain.shape
    difference = float((found - plain).abs().max()) / max(float(plain.abs().max()), 1e-30)
    assert difference <= cell.tolerance, f"{difference:.2e}"
    assert found.dtype == torch.int64 or float(plain.abs().max()) > 0


def test_every_cell_has_a_client_and_one_of_two_kinds() -> None:
    assert set(CONTRACT) == set(CLIENTS)
    assert all(
        isinstance(cell, Equal | Refused) for _, cells in CONTRACT.values() for cell in cells
    )


def test_the_page_is_the_contract() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rendered(page)
