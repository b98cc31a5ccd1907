"""Attention under a training gate, forward and backward, without a T x T tensor: one operator
(``operator``), a compiled kernel on CPU (``kernel``) and blocks of query rows (``blocks``)."""
