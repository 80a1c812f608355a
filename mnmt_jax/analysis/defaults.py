"""Default settings of analyses, which the command line reads without importing JAX."""

NODES = 50  # of the quadrature of attributions; Captum's
PROBE_UPDATES = 2000
MIN_COUNT = 5  # tokens of a type that probes count
PERPLEXITY = 30.0  # of t-SNE; scikit-learn's
TOP_HEADS = 4  # heads that are ablated and steered
STEERING_STRENGTH = 4
