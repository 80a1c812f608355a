"""Documents in and out: segments of text to translate, and everything else kept as it is."""
