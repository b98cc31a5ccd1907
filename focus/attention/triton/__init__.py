"""Triton's kernels on CUDA: attention under the hard mask over a whole sequence (``kernels``, of
long texts over ``lists``) and in a decoding step (``decoding``), the training gates (``gated``),
and memberships (``memberships``)."""
