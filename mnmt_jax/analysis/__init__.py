"""What a trained model does inside: attention maps, attribution, language branches.

Each kind of analysis is a module that returns facts, plain enough for JSON; `pictures` draws them
and `analysis_files` writes both. All of them read taps of the model's own pass over sentences whose
targets are given (`forced`).
"""
