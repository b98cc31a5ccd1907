"""One C++ kernel for attention under the hard mask on CPU, compiled on first use where a compiler
is at hand."""
