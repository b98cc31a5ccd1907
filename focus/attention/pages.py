"""Memory of tensors that are kept: large pages, in which rows far apart are found faster."""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor

LARGE = 2**21  # bytes of a large page


def in_large_pages(tensor: Tensor) -> Tensor:
    """Asks Linux for them under a new tensor on a CPU, and gives it back."""
    size = tensor.numel() * tensor.element_size()
    if tensor.device.type == "cpu" and size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (tensor.data_ptr() + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)
    return tensor


def owned(tensor: Tensor) -> Tensor:
    """Detached, and copied where it is a view that would keep something larger alive."""
    tensor = tensor.detach()
    large = tensor.untyped_storage().nbytes() > 1.5 * tensor.numel() * tensor.element_size()
    return tensor.contiguous() if large else tensor
