"""Check before training that something tells the model which language to translate into."""

from __future__ import annotations

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import join_names


def describe_missing_target_language(data: Data, plan: Plan, cache: TokenCache) -> str:
    """Describe a model of several target languages that is not told which one is wanted.

    Such a run is allowed: the baselines of Table 7 of the language-specific layers paper are
    trained so.

    Args:
        data: of the run, with the tasks trained on.
        plan: of the model.
        cache: that has the tasks.

    Returns:
        One line; empty if tags, registers or a sublayer carry the target language, if there is one
        target language alone, or if the model is a language model.
    """
    roles = plan.layout.embedded_roles()
    carried = (
        get_instruction(data.instruction).has_target_tag
        or REGISTER in roles
        or "target_lang" in plan.languages()
    )
    targets = sorted({cache.tasks[name].target_lang for name in data.tasks})
    if carried or len(targets) < 2 or not {SOURCE, TARGET}.issubset(roles):
        return ""
    return (
        f"Data.instruction='{data.instruction}': nothing tells the model which of "
        f"{join_names(targets)} to translate into; add Model.methods=('language_layers',), or train "
        "with tags"
    )
