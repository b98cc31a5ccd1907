"""What an experiment needs for a model, before any weight is there: sizes, memory, operations.

Models are built by transformers on the meta device and run under torch's fake tensors, which have
shapes and no numbers: counts are those of the code that will run, not of a formula beside it.
"""
