"""Tables of the sides: source and target embedded apart, and a matrix of its own for the output.

With every system before it one table embeds both sides and gives the logits. Graformer's baselines
embed source and target apart, the latter's table being the output's too; its Adapter baseline has a
third one for the output.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
its code and scripts.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Model
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Head, Plan, Table
from mnmt_jax.errors import UserError

TARGET_TABLE, OUTPUT_TABLE = "target_embedding", "output_embedding"


@dataclasses.dataclass(frozen=True)
class Tables(Method, name="tables"):
    """What has a table of its own; `embedding` embeds the rest.

    Attributes:
        target: the target's table is its own.
        output: the output's matrix is its own; otherwise it is the table of the target.
    """

    target: bool = True
    output: bool = False

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the tables.

        Raises:
            UserError: if one role alone is embedded, so that there is nothing to set apart.
        """
        del config
        role, tables = plan.layout.generated, [Table()]
        if self.target and plan.layout.embedded_roles() == (role,):
            raise UserError(
                f"tables: layout '{plan.layout.name}' embeds nothing but the {role}; set "
                "Tables.target=False"
            )
        if self.target:
            tables.append(Table(TARGET_TABLE, (role,)))
        read = tables[-1].name
        if self.output:
            tables.append(Table(OUTPUT_TABLE, embeds=False))
            read = OUTPUT_TABLE
        return dataclasses.replace(plan, tables=tuple(tables), heads=(Head(read),))
