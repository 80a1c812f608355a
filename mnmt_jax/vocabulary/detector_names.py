"""Names of language detectors, which command lines read without loading any."""

LID176, LANGDETECT = "lid.176", "langdetect"
