"""What a trained model does inside: attention, attribution, language branches, states of layers.

Each kind of analysis is a module that returns facts, plain enough for JSON; `pictures` draws them
and `analysis_files` writes both. All of them read taps or states (`compute_layer_states`) of the model's
own pass over sentences whose targets are given (`forced`).
"""
