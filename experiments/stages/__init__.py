"""The stages of the pipeline; each runs as `python -m experiments.stages.NAME`."""
