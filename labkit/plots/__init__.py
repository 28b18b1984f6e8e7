"""Figures: numbers in, an Altair chart out; one family to a file, all in the look of `theme`."""
