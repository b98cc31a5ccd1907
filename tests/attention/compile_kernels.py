"""Compiles Triton's kernels for cards that are not here, and prints what each needs:
``python -m tests.attention.compile_kernels CAPABILITY``, without Triton's interpreter."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from focus import sinkhorn_kernels
from focus.attention import route
from focus.attention.train import cuda
from focus.attention.triton import decoding, gated, kernels, memberships
from focus.attention.triton.call import FEW, MOST_GROUPS, NARROW, PACKED, SINKS, power

WIDE = {"query", "key", "value", "out", "rows", "grad"}
FLOATS = {"lse": "*fp32", "parts": "*fp32", "scale": "fp32", "softcap": "fp32",
          "projected": "*fp32", "centroids": "*fp32", "potentials": "*fp32", "taken_at": "*fp32",
          "heavy": "*fp32", "delta": "*fp32", "query_groups": "*fp32", "key_groups": "*fp32",
          "d_query": "*fp32", "d_key": "*fp32", "d_value": "*fp32",
          "d_groups": "*fp32", "scores": "*fp32", "levels": "*fp32", "found": "*fp32",
          "d_found": "*fp32", "d_scores": "*fp32", "temperature": "fp32"}  # fmt: skip
POINTERS = {
    "real": "*u8", "flags": "*u8", "groups": "*i1", "lists": "*i32", "lengths": "*i32",
    "counts": "*i32", "token_E": "*i32", "allowed_E": "*i32", "bits": "*i64", "bits_E": "*i64",
    "bits_N": "*i64",
    "starts": "*i64", "first_G": "*i64", "stop_G": "*i64", "list_G": "*i64", "extra": "*i64",
    "membership": "*i1", "query_bits": "*i64", "key_bits": "*i64", "sinks": "*i64",
}  # fmt: skip


def compiled(kernel: Any, capability: int, constants: dict[str, Any], **options: int) -> int:
    """Bytes of shared memory of a kernel for bfloat16."""
    signature, known, aligned = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], known[(place,)] = "constexpr", constants[name]
            continue
        wide = "*bf16" if name in WIDE else FLOATS.get(name)
        signature[name] = wide or POINTERS.get(name, "i32")
        if constants.get("SINK") == NARROW and signature[name] == "*i64":
            signature[name] = "*i32"
        if name in WIDE:
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    return int(triton.compile(source, target=target, options=options).metadata.shared)


def main() -> None:
    """Each kernel with each of its switches, in the sizes that a card of little memory gets."""
    capability, found = int(sys.argv[1]), {}
    for dim, warps, (rows, keys) in ((64, 4, (128, 64)), (128, 8, (128, 64)), (256, 4, (64, 32))):
        block = {"D": dim, "BLOCK_M": rows, "BLOCK_N": keys, "BLOCK_D": dim}
        own = {"num_warps": warps, "num_stages": 2}
        listed = {**block, "BLOCK_S": SINKS, "LISTED": True, "SINK": NARROW, "PADDED": True}
        found[f"listed {dim}"] = compiled(kernels.masked, capability, listed, **own)
        found[f"distant {dim}"] = compiled(
            kernels.distant, capability, {**block, "REPEATED": True}, **own
        )
        for sink, padded in ((NARROW, False), (MOST_GROUPS, True)):
            found[f"masked {dim} {sink}"] = compiled(
                kernels.masked,
                capability,
                {**listed, "LISTED": False, "SINK": sink, "PADDED": padded},
                **own,
            )
    every_gate = [(64, 18, gate) for gate in range(len(cuda.GATES))]
    for dim, groups, gate in (*every_gate, (64, MOST_GROUPS, 0), (128, 32, 0),
                              (128, MOST_GROUPS, 0), (256, MOST_GROUPS, 0)):  # fmt: skip
        for kernel in (gated.attend, gated.slopes_of_queries, gated.slopes_of_keys):
            m, n, options = cuda.sizes(dim, groups, kernel is not gated.attend)
            own = {"D": dim, "K": groups, "GATE": gate, "BLOCK_M": m, "BLOCK_N": n,
                   "BLOCK_D": dim, "BLOCK_K": power(groups)}  # fmt: skip
            name = f"{kernel.fn.__name__} {dim} {groups} {cuda.GATES[gate]}"
            found[name] = compiled(kernel, capability, own, **options)
    dims = {"D": 64, "BLOCK_D": 64}
    for on in (False, True):
        bits = {"SINK": MOST_GROUPS if on else NARROW, "PADDED": on}
        found[f"further {on}"] = compiled(
            kernels.further, capability, {**dims, **bits, "BLOCK_M": FEW}
        )
        found[f"pack {on}"] = compiled(
            memberships.pack, capability, {**bits, "BLOCK_T": PACKED, "BLOCK_K": 32}
        )
        switches = {"COSINE": not on, "ALLOCATED": on, "HEAVY": on}
        blocks = {"BLOCK_T": route.TOKENS, "BLOCK_R": 128, "BLOCK_K": 64}
        found[f"choose {on}"] = compiled(
            memberships.choose, capability, {"R": 128, **switches, **blocks}
        )
        found[f"file {on}"] = compiled(
            decoding.file, capability, {**dims, "PADDED": on, "LISTED": on, "BLOCK_K": 32}
        )
        for kernel in (sinkhorn_kernels.find, sinkhorn_kernels.slopes):
            own = {"PADDED": on, "BLOCK_T": 256 if on else 64, "BLOCK_K": 16 if on else 64}
            found[f"{kernel.fn.__name__} {on}"] = compiled(kernel, capability, own)
    for padded, listed in itertools.product((False, True), repeat=2):
        switches = {"PADDED": padded, "LISTED": listed, "REPEATED": padded, "SOFTCAP": padded}
        found[f"step {padded} {listed}"] = compiled(
            decoding.step, capability, {**dims, **switches, "BLOCK_K": 32, "BLOCK_C": 64, "P": 16}
        )
    found["combine"] = compiled(decoding.combine, capability, {**dims, "P": 16})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
