"""Benchmarks by lm-eval's own tasks, over files of the package index in the place of the hub."""
