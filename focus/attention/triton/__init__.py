"""Attention under the hard mask on CUDA by two Triton kernels: near pairs and sinks, then each
group's own (``kernels``), over lists of its keys and queries (``lists``)."""
