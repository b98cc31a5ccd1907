import torch

from experiments.evenness import balance_statistics


def test_balance_statistics() -> None:
    even = torch.eye(4, dtype=torch.bool).repeat(8, 1)[None, None]
    assert balance_statistics(even) == {"largest_group": 0.25, "one_plus_cv2": 1.0}
    one = torch.zeros(1, 1, 10, 4, dtype=torch.bool)
    one[..., 0] = True
    assert balance_statistics(one) == {"largest_group": 1.0, "one_plus_cv2": 4.0}
    real = torch.arange(10)[None] < 5
    one[..., 5:, :] = False
    assert balance_statistics(one, real)["largest_group"] == 1.0
