"""What a method may do to a model and its training. Each has a file in `mnmt_jax/methods`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mnmt_jax.config_checks import Checked
from mnmt_jax.objective import Objective, Player
from mnmt_jax.plan import Plan

if TYPE_CHECKING:
    from mnmt_jax.config import Config, Model


class Method(Checked):
    """A method: a frozen dataclass of its settings, which gin fills under the name of the class.

    `class Adaption(Method, name="adaption")` is chosen by `Model.methods = ('adaption',)`, or by
    `Train.methods` if it leaves the model as it is, and set by `Adaption.mlp = 512`. Whatever it
    does not say here stays as it is without it.
    """

    name: ClassVar[str]
    known: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, *, name: str, **rest: Any) -> None:
        """Makes a method known.

        Args:
            name: by which `Model.methods` and `Train.methods` choose it.
            rest: of the class.
        """
        super().__init_subclass__(**rest)
        cls.name = name
        cls.known[name] = cls

    @classmethod
    def edits(cls) -> bool:
        """Returns whether it changes the model."""
        return cls.edit is not Method.edit

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Returns the plan of a model with the method.

        Args:
            plan: of the model without it.
            config: sizes.

        Raises:
            UserError: if the layout has no place for it.
        """
        del config
        return plan

    def check(self, config: Config, plan: Plan) -> None:
        """Checks that a training can use it.

        Args:
            config: of the run.
            plan: of its model.

        Raises:
            UserError: otherwise.
        """
        del config, plan

    def objectives(self) -> tuple[Objective, ...]:
        """Returns what training minimises besides the cross entropy."""
        return ()

    def players(self) -> tuple[Player, ...]:
        """Returns who moves before the rest, in this order."""
        return ()
