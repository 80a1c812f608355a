"""Separate embedding tables for source and target, and a separate output matrix.

By default one table embeds both sides and computes the logits. Graformer's baselines have separate
tables for source and target, and the target's also computes the logits; its Adapter baseline has a
third table for the output.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
its code and scripts.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import TRIGGER
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Head, Plan, Table
from mnmt_jax.errors import UserError

TARGET_TABLE, OUTPUT_TABLE = "target_embedding", "output_embedding"


@dataclasses.dataclass(frozen=True)
class Tables(Method, name="tables"):
    """The roles with separate tables; `embedding` embeds all others.

    Attributes:
        target: whether the target has a separate table.
        output: whether the output has a separate matrix; otherwise it is the target's table.
    """

    target: bool = True
    output: bool = False

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the tables.

        Raises:
            UserError: if only one role is embedded, so that there is nothing to separate, or
                another method has set the tables.
        """
        del config
        if (plan.tables, plan.heads) != ((Table(),), (Head(),)):
            raise UserError(
                "Model.methods: 'tables' and another method both set the embedding tables; leave "
                "one of them out"
            )
        role, tables = plan.layout.generated, [Table()]
        if self.target and plan.layout.embedded_roles() == (role,):
            raise UserError(
                f"tables: layout '{plan.layout.name}' embeds nothing but the {role}; set "
                "Tables.target=False"
            )
        if self.target:  # the trigger is a copy of the target's first input
            copies = (TRIGGER,) if TRIGGER in plan.layout.embedded_roles() else ()
            tables.append(Table(TARGET_TABLE, (role, *copies)))
        output_table = tables[-1].name
        if self.output:
            tables.append(Table(OUTPUT_TABLE, embeds=False))
            output_table = OUTPUT_TABLE
        return dataclasses.replace(plan, tables=tuple(tables), heads=(Head(output_table),))
