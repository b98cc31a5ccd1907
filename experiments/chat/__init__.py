"""Questions to an instruct model, and what it answered before any training."""
