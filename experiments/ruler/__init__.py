"""Long-context tasks in the manner of RULER (arXiv 2404.06654), in prompts of our own words.

A prompt is made of pieces: an opening, filler that is cut to the length asked for, needles between
two pieces of the filler, and a question. RULER's essays and question sets come from the package
index (source ``ruler``); words and numbers are drawn by a seed that the task, the length and the
question's number give, so a question is the same for every method.
"""
