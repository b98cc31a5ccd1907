"""How evenly tokens spread over groups.

Shape suffixes: B batch, Hr routers a layer (1, or the key heads), T tokens, K groups.
"""

from __future__ import annotations

from torch import Tensor


def balance_statistics(membership_BHrTK: Tensor, real_BT: Tensor | None = None) -> dict[str, float]:
    """How evenly tokens spread over groups, averaged over batch and routers.

    Args:
        membership_BHrTK: bool.
        real_BT: bool, False for padding.

    Returns:
        ``largest_group``: share of tokens in the fullest group (balanced top-1: 1/K);
        ``one_plus_cv2``: 1 + squared coefficient of variation of the group sizes, the factor by
        which imbalance raises the cost of the group call.
    """
    if real_BT is not None:
        membership_BHrTK = membership_BHrTK & real_BT[:, None, :, None]
    sizes = membership_BHrTK.sum(-2).cpu().double()  # not every device has float64
    shares = sizes / sizes.sum(-1, keepdim=True)
    groups = membership_BHrTK.shape[-1]
    return {
        "largest_group": float(shares.amax(-1).mean()),
        "one_plus_cv2": float((shares.square().sum(-1) * groups).mean()),
    }
