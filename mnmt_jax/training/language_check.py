"""Pre-training check: is the target language an input of the model?"""

from __future__ import annotations

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import join_names


def describe_missing_target_language(data: Data, plan: Plan, cache: TokenCache) -> str:
    """Describe a model with several target languages whose inputs do not identify the target.

    Such a run is allowed: the baselines of Table 7 of the language-specific layers paper are
    trained so.

    Args:
        data: data section of the run, with its training tasks.
        plan: plan of the model.
        cache: cache that has the tasks.

    Returns:
        One line; empty if tags, registers or a sublayer carry the target language, if there is only
        one target language, or if the model is a language model.
    """
    roles = plan.layout.embedded_roles()
    is_identified = (
        get_instruction(data.instruction).has_target_tag
        or REGISTER in roles
        or "target_lang" in plan.languages()
    )
    targets = sorted({cache.tasks[name].target_lang for name in data.tasks})
    if is_identified or len(targets) < 2 or not {SOURCE, TARGET}.issubset(roles):
        return ""
    return (
        f"Data.instruction='{data.instruction}': the model cannot know which of "
        f"{join_names(targets)} to translate into; add Model.methods=('language_layers',), or "
        "choose an instruction with tags"
    )
