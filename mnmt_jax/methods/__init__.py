"""The methods: one file each, with its settings, its edit of the plan and its objectives.

A file is imported when a configuration names its method or its section; `mnmt_jax.config.registry`
does.
"""

# Files of this folder, and the gin sections in them.
SECTIONS = {
    "adaption": "Adaption",
    "back_translation": "BackTranslation",
    "cut_residual": "CutResidual",
    "graformer": "Graformer",
    "graft": "Graft",
    "instructcl": "InstruCL",
    "language_layers": "LanguageLayers",
    "lcs": "LCS",
    "masking": "Masking",
    "mrasp2": "MRASP2",
    "tables": "Tables",
    "tpdm": "TPDM",
    "tuning_layers": "TuningLayers",
}
