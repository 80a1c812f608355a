"""Analyses of trained models: attention, attribution, language branches, layer states.

Each analysis module returns a JSON-ready dict; `page_sections` renders it as HTML sections and
`analysis_files` writes both. All of them record intermediates or layer states
(`compute_layer_states`) during a teacher-forced forward pass (`teacher_forcing`).
"""
